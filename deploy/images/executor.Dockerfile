# The match executor: harena executor. Matches on this machine need user namespaces; matches as Jobs do not.
#   docker build -t rl-arena-executor:latest -f deploy/images/executor.Dockerfile .
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
COPY . /src
RUN python3 -m venv /opt/harena && HARENA_REQUIRE_NATIVE=1 /opt/harena/bin/pip install --no-cache-dir '/src[executor,kubernetes]'

FROM ${BASE}
COPY --from=build /opt/harena /opt/harena
ENV PATH=/opt/harena/bin:$PATH PYTHONDONTWRITEBYTECODE=1 EXECUTOR_HOST=0.0.0.0 EXECUTOR_PORT=50051
USER 65532:65532
EXPOSE 50051 9101
ENTRYPOINT ["harena", "executor"]
