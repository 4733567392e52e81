# What agents in Python are built on, and run in: Python and numpy, without Harena. docs/agents.md says what an agent is.
#   docker build -t rl-arena-agent:latest -f deploy/images/agent.Dockerfile .
# An agent is then two lines: FROM rl-arena-agent:latest, COPY agent.py /agent/agent.py.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS build
COPY deploy/images /src/deploy/images
RUN sh /src/deploy/images/install 'numpy>=1.26,<3'

FROM ${BASE}
COPY --from=build /opt/harena /opt/harena
ENV PATH=/opt/harena/bin:$PATH PYTHONDONTWRITEBYTECODE=1
LABEL harena.agent=/agent/agent.py
WORKDIR /agent
USER 65532:65532
CMD ["python3"]
