# One command for each thing. `make help` lists them; CONTRIBUTING.md says more.
.DEFAULT_GOAL := help
SHELL := /bin/sh
RUN := tools/run

# Folders that are not there (yet) are left out.
FAST := $(wildcard tests/unit tests/conformance tests/model tests/simulation tests/crash tests/test_packaging.py)
REST := $(wildcard tests/services)
SPARK := $(if $(wildcard tests/spark/test_*.py tests/spark/*/test_*.py),tests/spark)
CODE := $(wildcard src wal committers sinks spark examples tests tools benchmarks)

# For callers: make test PYTEST_ARGS="-k fold", make simulate N=10000 SEED=7, make demo STORE=redis://localhost
PYTEST_ARGS ?=
JOBS ?= 2
N ?= 1000000
SEED ?= 1
SWEEP_ARGS ?=

.PHONY: help setup demo test full lint format types simulate sweep mutants clean

help: ## Say what there is to run
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 18

setup: ## Make .venv and find Java (every target below does it first; quick when nothing changed)
	@tools/setup

demo: setup ## Run the demo on real departures (WAL=... STORE=... for other places)
	$(RUN) tidegate demo $(if $(WAL),--wal '$(WAL)') $(if $(STORE),--store '$(STORE)')

test: setup ## Run the tests that need no server: plain ones in parallel, then Spark's with one JVM
	$(RUN) pytest -n $(JOBS) --dist loadgroup -m "not slow and not spark" $(FAST) $(PYTEST_ARGS)
	$(if $(SPARK),$(RUN) pytest -m "not slow" $(SPARK) $(PYTEST_ARGS))

full: setup ## Run all tests, slow ones and those with real servers too
	$(RUN) pytest -n $(JOBS) --dist loadgroup -m "not spark" $(FAST) $(PYTEST_ARGS)
	$(if $(REST),$(RUN) pytest $(REST) $(PYTEST_ARGS))
	$(if $(SPARK),$(RUN) pytest $(SPARK) $(PYTEST_ARGS))

lint: setup ## Check style and format
	$(RUN) ruff check $(CODE)
	$(RUN) ruff format --check $(CODE)

format: setup ## Format the code and mend what ruff can mend
	$(RUN) ruff check --fix-only --quiet $(CODE)
	$(RUN) ruff format $(CODE)

types: setup ## Check types, strictly, through the link tree
	$(RUN) python tools/link_tree.py
	$(RUN) mypy

simulate: setup ## Simulate N schedules from SEED; the same seed repeats the same run
	$(RUN) python -m tidegate.testing.simulation --schedules $(N) --workers $(JOBS) --seed $(SEED)

sweep: setup ## Kill a driver at every I/O it does, finish in every way (SWEEP_ARGS="--from 300" goes on there)
	$(RUN) python -m tidegate.testing.crash_sweep --jobs $(JOBS) $(SWEEP_ARGS)

mutants: setup ## Break the protocol on purpose, rule by rule, and see a test notice each
	$(RUN) python tools/mutants.py

clean: ## Remove what the other targets made, .venv too
	rm -rf .venv .types build dist *.egg-info src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf artifacts derby.log metastore_db spark-warehouse
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
