PYTHON ?= python3
ARGS ?=
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
INSTALL := pip install --quiet --disable-pip-version-check
LOCKED := $(INSTALL) --no-deps --require-hashes
TYPED := selfcest_env agents/selfcest_agents $(addprefix training/selfcest_,training eval methods lab baselines cli verifiers) studies benchmarks

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help train test lint slow format site lock release clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The marker is written last, so an interrupted set-up is repeated. hatchling is in the lock, hence no build isolation.
$(VENV)/.installed: pyproject.toml requirements/dev.txt requirements/torch.txt
	@rm -f $@
	@$(PYTHON) -c 'import sys; sys.exit("selfcest needs Python 3.11 or newer: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m $(LOCKED) -r requirements/dev.txt
	$(BIN)/python -m $(INSTALL) -r requirements/torch.txt
	$(BIN)/python -m $(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

# Tests open pages in Chromium. Without it and without a way to install it, they are skipped with a reason.
$(VENV)/.browser: $(VENV)/.installed
	@command -v chromium > /dev/null || command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null || \
	    { test "$$(id -u)" = 0 && timeout 60 apt-get -qq update && \
	      DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -qq install --yes --no-install-recommends chromium > /dev/null; } || \
	    echo "Chromium is missing and cannot be installed: tests that open a page will be skipped" >&2
	@touch $@

train: $(VENV)/.installed ## set up, then train or resume; ARGS="..." are passed to `selfcest train`
	$(BIN)/selfcest train --resume $(ARGS)

# On tiny tensors, threads that wait for each other cost more than they gain.
test slow: export OMP_NUM_THREADS = 1
test slow: export OMP_WAIT_POLICY = passive
# pytest rewrites the asserts of every file, which takes seconds in each process that may not store them.
test slow: export PYTHONDONTWRITEBYTECODE =

test: lint $(VENV)/.browser ## set up, lint, check types and imports, run the fast tests; ARGS="..." are passed to pytest
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

lint: $(VENV)/.installed ## run ruff, mypy and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(TYPED)
	$(BIN)/lint-imports

slow: $(VENV)/.installed $(VENV)/.browser ## run the slow tests; ARGS="..." are passed to pytest
	$(BIN)/python -m pytest -n $(WORKERS) -m slow $(ARGS)

format: $(VENV)/.installed ## fix and format with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

site: $(VENV)/.installed ## build the documentation into site/ in its own environment; .venv makes the embedded pages
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m $(LOCKED) -r requirements/docs.txt
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict

# uv comes from tools.in, because tools.txt may lack a new version. The hashes of an unchanged pin are kept.
lock: ## write the hashes of requirements/*.in into requirements/*.txt
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m $(INSTALL) --no-deps `grep '^uv==' requirements/tools.in`
	@for pins in requirements/*.in; do echo $$pins; \
	$(VENV)-lock/bin/uv pip compile --quiet --no-deps --universal --generate-hashes --no-annotate --python-version 3.11.0 \
	--custom-compile-command "make lock" --output-file $${pins%.in}.txt $$pins || exit; done

release: ## build sdist and wheel into dist/, with an SBOM and their provenance, of a commit
	$(PYTHON) -m venv $(VENV)-tools
	$(VENV)-tools/bin/python -m $(LOCKED) -r requirements/tools.txt
	rm -rf dist
	$(VENV)-tools/bin/python requirements/release.py dist $(ARGS)

clean: ## remove the environment, caches and build outputs; runs/ stays
	rm -rf $(VENV) $(VENV)-docs $(VENV)-lock $(VENV)-tools site build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find $(TYPED) tests -name __pycache__ -type d -prune -exec rm -rf {} +
