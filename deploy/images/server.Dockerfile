# The arena: harena up, with API, page, workers and executor in one process.
#   docker build -t rl-arena-server:latest -f deploy/images/server.Dockerfile .
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS build
COPY . /src
RUN sh /src/deploy/images/install 'harena[arena,postgres]'

FROM ${BASE}
COPY --from=build /opt/harena /opt/harena
ENV PATH=/opt/harena/bin:$PATH PYTHONDONTWRITEBYTECODE=1 HARENA_DATA=/data
USER 65532:65532
VOLUME /data
EXPOSE 8000 7860 50051 9100
ENTRYPOINT ["harena", "up", "--host", "0.0.0.0"]
