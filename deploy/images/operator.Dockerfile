# The operator of warm pools, and the server in their pods: harena operator run, harena serve.
#   docker build -t rl-arena-operator:latest -f deploy/images/operator.Dockerfile .
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS build
COPY . /src
RUN sh /src/deploy/images/install 'harena[serve,operator]'

FROM ${BASE}
COPY --from=build /opt/harena /opt/harena
ENV PATH=/opt/harena/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["harena"]
CMD ["operator", "run"]
