# The one door. Everything lives in .venv; `make up` and `make test` need nothing run before them.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup up demo test check fix bench soak native calls wire proto clean

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
comma := ,
# Without a compiler boxes are started by bubblewrap.
RUN_EXTRA := [arena$(if $(shell command -v $(firstword $(CC)) 2>/dev/null),,$(comma)bwrap)]

help:
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1	\2/p' Makefile

setup: .venv/.dev native ## .venv with everything needed to work on Harena

up: .venv/.run native ## an arena on http://127.0.0.1:8000, with examples (ARGS="--port 9000 --data DIR" …)
	$(BIN)/harena up $(ARGS)

demo: .venv/.run native ## boxes made, attacked and matched, in a few seconds
	$(BIN)/harena demo

test: setup ## every test but the soak (ARGS=... goes to pytest)
	@failed=0; \
	run() { $(BIN)/pytest "$$@" $(ARGS) || { code=$$?; [ $$code -eq 5 ] || failed=$$code; }; }; \
	PYTEST_XDIST_AUTO_NUM_WORKERS=$$((2 * $$(nproc))); export PYTEST_XDIST_AUTO_NUM_WORKERS; \
	run -n auto --maxprocesses 8 --dist worksteal -m 'not serial and not soak'; \
	run -m 'serial and not soak'; \
	exit $$failed

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

calls: setup ## make docs/system-calls.md from the policy
	$(BIN)/python -m harena.backends.local.callpage > docs/system-calls.md

wire: setup ## make the wire's constants for C and for the box from wire.py
	$(BIN)/python -m harena.backends.local.wirefiles

proto: setup ## make the executor's messages from proto/
	$(BIN)/python -m grpc_tools.protoc --proto_path=proto --python_out=src/harena/match/executor/pb \
		--pyi_out=src/harena/match/executor/pb executor.proto

clean: ## remove all that was built
	rm -rf .venv .venv-* build dist src/*.egg-info .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f src/harena/backends/local/native/harena-box src/harena/backends/local/native/zygote.so src/harena/azr/native/*.so
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
