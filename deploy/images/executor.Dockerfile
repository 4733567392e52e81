# The match executor: harena executor. Matches on this machine need user namespaces; matches as Jobs do not.
#   docker build -t rl-arena-executor:latest -f deploy/images/executor.Dockerfile .
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS build
COPY . /src
RUN sh /src/deploy/images/install 'harena[executor,kubernetes]'

FROM ${BASE}
COPY --from=build /opt/harena /opt/harena
ENV PATH=/opt/harena/bin:$PATH PYTHONDONTWRITEBYTECODE=1 EXECUTOR_HOST=0.0.0.0 EXECUTOR_PORT=50051
USER 65532:65532
EXPOSE 50051 9101
ENTRYPOINT ["harena", "executor"]
