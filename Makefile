# Every target does its own set-up in $(VENV) and can be run first. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test test-fast lint format dev docs lock audit soak fuzz clean

VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=

in_range := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))
PYTHON ?= $(shell for p in python3.12 python3.11 python3; do \
	$$p -c '$(in_range)' >/dev/null 2>&1 && { echo $$p; break; }; done)
ifeq ($(strip $(PYTHON)),)
$(error Python 3.11 or 3.12 with its venv module was not found. Install one \
(Debian, Ubuntu: apt-get install python3.11-venv) or name it: make PYTHON=/path/to/python3.11)
endif

SETUP := $(PYTHON) scripts/setup_env.py --venv $(VENV)

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 20

demo: ## run the AutoGen travel planner on an embedded engine (ARGS="--task ...")
	@$(SETUP) run
	@$(BIN)/python examples/travel_planner/main.py $(ARGS)

test: ## lint, type check and run all tests (ARGS="-k name")
	@$(SETUP) test
	@$(BIN)/python scripts/run_tests.py --lint -- $(ARGS)

test-fast: ## the tests that need no engine, no Triton interpreter and no download
	@$(SETUP) test
	@$(BIN)/python scripts/run_tests.py --fast -- $(ARGS)

lint: ## ruff and mypy
	@$(SETUP) test
	@$(BIN)/python scripts/run_tests.py --lint --no-tests

format: ## let ruff rewrite the sources
	@$(SETUP) test
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

dev: ## set-up for contributors: test tools, build, pre-commit hooks
	@$(SETUP) dev
	@$(BIN)/pre-commit install

audit: ## known weaknesses (pip-audit, needs the index) and licences of the pinned packages
	@$(SETUP) dev
	@$(BIN)/python scripts/licences.py --check
	@for set in cpu cpu-nodeps test train docs dev tools; do \
		$(BIN)/pip-audit --no-deps --disable-pip --strict -r requirements/$$set.txt || exit 1; done

soak: ## 30 minutes of random workflows (ARGS="--seconds 60 --seed 1 --engine embedded --resume")
	@$(SETUP) test
	@$(BIN)/python scripts/soak.py $(ARGS)

fuzz: ## coverage-guided fuzzing of what comes from outside (ARGS="--seconds 600 gguf wire")
	@$(SETUP) dev
	@$(BIN)/python scripts/fuzz.py $(ARGS)

docs: ## build the documentation site in site/
	@$(SETUP) docs
	@echo "Building the site in site/ (a quarter of a minute)"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict $(ARGS)

COMPILE := $(BIN)/uv --no-progress pip compile --quiet --no-header --python-version 3.11 \
	--python-platform x86_64-manylinux_2_35

lock: ## write the pinned requirements/*.txt anew from the *.in files
	@$(SETUP) dev
	$(COMPILE) --config-file requirements/uv.toml requirements/cpu.in pyproject.toml -o requirements/cpu.txt
	$(COMPILE) --override requirements/gpu-overrides.txt --only-binary :all: \
		requirements/gpu.in pyproject.toml -o requirements/gpu.txt
	$(COMPILE) -c requirements/cpu.txt requirements/test.in -o requirements/test.txt
	$(COMPILE) -c requirements/cpu.txt -c requirements/test.txt requirements/docs.in -o requirements/docs.txt
	$(COMPILE) -c requirements/cpu.txt -c requirements/test.txt \
		requirements/dev.in -o requirements/dev.txt

clean: ## remove the virtual environment and all caches of tools (not the model cache)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
