# Plays one match inside of a Job, and is the image of agents that were sent as code: harena[match], without the cluster.
#   docker build -t rl-arena-orchestrator:latest -f deploy/images/orchestrator.Dockerfile .
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS build
COPY . /src
RUN sh /src/deploy/images/install 'harena[match]'

FROM ${BASE}
COPY --from=build /opt/harena /opt/harena
ENV PATH=/opt/harena/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
CMD ["python3", "-m", "harena.match.orchestrator.main"]
