# Everything a newcomer or CI needs, on a machine with Python 3.11+, pip and make. `make help` lists it.
#
# Variables (make <target> NAME=value):
#   PYTHON       the interpreter that makes the virtual environment         [python3]
#   VENV         where the virtual environment lives                        [.venv]
#   CONSTRAINTS  pinned versions; a GPU machine may bring its own file      [constraints.txt]
#   PIP_FLAGS    more flags for pip, e.g. the index of other torch builds   []
#   ARGS         passed on to the quickstarts, test, nano and bench         []
#   JOBS         processes for the tests                                    [2]

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
PIP_FLAGS ?=
ARGS ?=
JOBS ?= 2

BIN := $(VENV)/bin
CORE := $(VENV)/.core-installed
SEARCH := $(VENV)/.search-installed
FULL := $(VENV)/.full-installed

# A Python without ensurepip (Debian without python3-venv) makes an environment without pip; its own pip then fills it.
PIP = $$($(BIN)/python -c 'import pip' 2>/dev/null && echo "$(BIN)/python -m pip" || echo "$(PYTHON) -m pip --python $(BIN)/python")
INSTALL = $(PIP) install --disable-pip-version-check -c $(CONSTRAINTS) $(PIP_FLAGS)

.PHONY: help setup quickstart search-quickstart test test-cluster lint format nano nano-agent bench clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(FULL) ## virtual environment with burnish, test and dev tools

quickstart: $(CORE) ## a small model learns arithmetic by RL, on any machine, in minutes
	@$(BIN)/burnish quickstart $(ARGS)

search-quickstart: $(SEARCH) ## a small model learns to search by RL, with a retrieval server beside it
	@$(BIN)/burnish quickstart --task search $(ARGS)

test: $(FULL) ## the tests (ARGS="-m gpu" for those that need a GPU)
	$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

test-cluster: $(FULL) ## the long trials on Ray: all shapes of a cluster, every failure, two nodes (minutes)
	$(BIN)/python -m pytest -m cluster $(ARGS)

lint: $(FULL) ## ruff (lint and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(FULL) ## rewrite the sources the way lint wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

nano: $(CORE) ## make the embedded model again, from nothing
	$(BIN)/python examples/nano/make_nano.py $(ARGS)

nano-agent: $(SEARCH) ## make the embedded model that searches and calculates again, from nothing
	$(BIN)/python examples/nano/make_nano_agent.py $(ARGS)

bench: $(CORE) ## measure this machine
	$(BIN)/python benchmarks/step.py $(ARGS)

clean: ## remove caches, builds and the virtual environment (run folders under outputs/ stay)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find burnish tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "burnish needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12 ...")'
	@echo "making the virtual environment $(VENV)"
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || $(PYTHON) -m venv --clear --without-pip $(VENV)

$(CORE): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "installing burnish (the first time takes minutes: torch is large)"
	@$(INSTALL) -e .
	@touch $@

$(SEARCH): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "installing burnish with its retrieval server (the first time takes minutes: torch is large)"
	@$(INSTALL) -e '.[search]'
	@touch $(CORE) $@

$(FULL): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "installing burnish with test and dev tools (the first time takes minutes: torch is large)"
	@$(INSTALL) -e '.[test,dev]'
	@touch $(CORE) $(SEARCH) $@
