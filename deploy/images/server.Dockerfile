# The arena: harena up, with API, page, workers and executor in one process.
#   docker build -t rl-arena-server:latest -f deploy/images/server.Dockerfile .
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
COPY . /src
RUN python3 -m venv /opt/harena && HARENA_REQUIRE_NATIVE=1 /opt/harena/bin/pip install --no-cache-dir '/src[arena,postgres]'

FROM ${BASE}
COPY --from=build /opt/harena /opt/harena
ENV PATH=/opt/harena/bin:$PATH PYTHONDONTWRITEBYTECODE=1 HARENA_DATA=/data
USER 65532:65532
VOLUME /data
EXPOSE 8000 7860 50051 9100
ENTRYPOINT ["harena", "up", "--host", "0.0.0.0"]
