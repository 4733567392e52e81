# A worker of an arena: harena worker --server URL. Needs a token of a key with the scope worker in HARENA_TOKEN.
#   docker build -t rl-arena-worker:latest -f deploy/images/worker.Dockerfile .
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS build
COPY . /src
RUN sh /src/deploy/images/install 'harena[arena]'

FROM ${BASE}
COPY --from=build /opt/harena /opt/harena
ENV PATH=/opt/harena/bin:$PATH PYTHONDONTWRITEBYTECODE=1 HARENA_ISOLATION=best
USER 65532:65532
ENTRYPOINT ["harena", "worker"]
