# The one door. Everything lives in .venv; `make up` and `make test` need nothing run before them.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup up run demo test services thorough check fix bench soak native packages docs coverage calls wire proto requirements crds wheels build-all k8s-setup logs clean

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
comma := ,
BUILD ?= docker build -t
TAG ?= latest
PB := src/harena/match/executor/pb
# Without a compiler boxes are started by bubblewrap.
RUN_EXTRA := [arena$(if $(shell command -v $(firstword $(CC)) 2>/dev/null),,$(comma)bwrap)]

help:
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/make \1	\2/p' Makefile

setup: .venv/.dev native ## .venv with everything needed to work on Harena

up: .venv/.run native ## an arena on http://127.0.0.1:8000, with examples (ARGS="--port 9000 --data DIR" …)
	$(BIN)/harena up $(ARGS)

run: .venv/.run native ## the match executor on 127.0.0.1:50051 (ARGS="--config config/limits.yaml" …)
	$(BIN)/harena executor $(ARGS)

demo: .venv/.run native ## boxes made, attacked and matched, in a few seconds
	$(BIN)/harena demo

TESTS = failed=0; \
	run() { $(BIN)/pytest "$$@" $(ARGS) || { code=$$?; [ $$code -eq 5 ] || failed=$$code; }; }; \
	PYTEST_XDIST_AUTO_NUM_WORKERS=$$((2 * $$(nproc))); export PYTEST_XDIST_AUTO_NUM_WORKERS; \
	run -n auto --maxprocesses 8 --dist worksteal -m "not serial and $$which"; \
	run -m "serial and $$which"; \
	exit $$failed

test: setup ## every claim, on the usual way of making boxes (ARGS=... goes to pytest)
	@which='not soak and not thorough and not services'; $(TESTS)

services: setup ## claims that need a browser, PostgreSQL, Docker, a registry or busybox
	@which='services and not soak and not thorough'; $(TESTS)

thorough: setup ## claims once more: other launchers and users, faults at every step
	@which='thorough and not soak'; $(TESTS)

check: setup ## format, lint, strict types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

fix: setup ## format, and repair what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## measure everything, and its peers beside it
	$(BIN)/python benchmarks/run.py $(ARGS)

soak: setup ## 20,000 executions, hostile ones among them
	$(BIN)/pytest -m soak --timeout 7200 $(ARGS)

native: .venv/.made ## rebuild the C part in place where a source is newer
	@$(BIN)/python -IS setup.py native
	@$(BIN)/python -m compileall -q src/harena/backends/local/guest # a box writes no .pyc: each would compile it anew

packages: setup ## the sdist, wheels for x86-64 and aarch64, and their bill of materials, in dist (needs gcc-aarch64-linux-gnu)
	rm -rf dist
	$(BIN)/python deploy/release/packages.py dist
	$(BIN)/python deploy/release/sbom.py dist

docs: setup ## the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

coverage: setup ## which lines the tests of `make test` run, those in child processes too (ARGS=... goes to pytest)
	rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest -m 'not serial and not soak and not thorough and not services' $(ARGS); failed=$$?; \
		$(BIN)/coverage combine --quiet; $(BIN)/coverage report --skip-covered --sort cover; exit $$failed

calls: setup ## make docs/system-calls.md from the policy
	$(BIN)/python -m harena.backends.local.policy.callpage > docs/system-calls.md

wire: setup ## make the wire's constants for C and for the box from wire.py
	$(BIN)/python -m harena.backends.local.wirefiles

proto: setup ## make the executor's messages from proto/
	$(BIN)/python -m grpc_tools.protoc --proto_path=proto --python_out=$(PB) --pyi_out=$(PB) --grpc_python_out=$(PB) \
		executor.proto
	@# the generator writes an import for files that are in no package
	sed -i 's/^import executor_pb2 as/from harena.match.executor.pb import executor_pb2 as/' $(PB)/executor_pb2_grpc.py

requirements: setup ## make requirements.txt from pyproject.toml
	$(BIN)/python deploy/requirements.py > requirements.txt

wheels: setup ## what the images of deploy/images are made from without a network, for this Python (the base must have the same)
	rm -rf deploy/images/wheels
	$(BIN)/python -m pip wheel --quiet --wheel-dir deploy/images/wheels '.[arena,executor,kubernetes,operator,postgres,serve]' pip

build-all: ## every image of deploy/images, by Docker (BUILD="harena image build -t" builds without it)
	@set -e; for file in deploy/images/*.Dockerfile; do \
		name=$$(basename $$file .Dockerfile); $(BUILD) rl-arena-$$name:$(TAG) -f $$file .; done

manifests: setup ## make k8s/deployment.yaml from deploy/k8s
	$(BIN)/python deploy/bundle.py > k8s/deployment.yaml

k8s-setup: ## create everything of deploy/k8s in the current cluster
	kubectl apply -f deploy/k8s/crds -f deploy/k8s

logs: ## follow the logs of the executor in the cluster
	kubectl logs --namespace rl-arena --selector app=rl-arena-executor --follow --tail 100

crds: setup ## make deploy/k8s/crds from the definitions of the custom resources
	$(BIN)/python -m harena.operator.crds deploy/k8s/crds

clean: ## remove all that was built
	rm -rf .venv .venv-* build dist src/*.egg-info .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f src/harena/backends/local/native/harena-box src/harena/backends/local/native/zygote.so src/harena/azr/native/*.so src/harena/match/orchestrator/native/harena-seat
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

.venv/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Harena needs Python 3.11 or newer: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) has no venv module; on Debian: apt-get install python3-venv" >&2; exit 1; }
	rm -rf .venv
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.run: pyproject.toml setup.py | .venv/.made
	$(PIP) --editable '.$(RUN_EXTRA)'
	@touch $@

.venv/.dev: pyproject.toml setup.py | .venv/.made
	$(PIP) --editable '.[dev]'
	@touch .venv/.run $@
