# The operator of warm pools: harena operator run.
#   docker build -t rl-arena-operator:latest -f deploy/images/operator.Dockerfile .
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
COPY . /src
RUN python3 -m venv /opt/harena && HARENA_REQUIRE_NATIVE=1 /opt/harena/bin/pip install --no-cache-dir '/src[operator]'

FROM ${BASE}
COPY --from=build /opt/harena /opt/harena
ENV PATH=/opt/harena/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["harena", "operator", "run"]
