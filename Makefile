# One command for each thing. `make help` lists them; CONTRIBUTING.md says more.
.DEFAULT_GOAL := help
SHELL := /bin/sh
RUN := tools/run

CODE := src wal committers sinks spark examples tests tools benchmarks

# For callers: make test PYTEST_ARGS="-k fold", make simulate N=10000 SEED=7, make demo WAL=kafka STORE=redis
PYTEST_ARGS ?=
export JOBS ?= 2
N ?= 1000000
FUZZ_S ?= 60
SEED ?= 1
SWEEP_ARGS ?=
SIMULATE_ARGS ?=
TORTURE_ARGS ?= --all
PROVE_ARGS ?=

# The demo's servers: those that are named alone, not by a URL.
REDIS = $(filter redis sentinel cluster,$(STORE))
CASSANDRA = $(filter cassandra cassandra-cluster,$(STORE))
STARTED = $(filter kafka,$(WAL)) $(REDIS) $(CASSANDRA)
ON_SERVERS = $(if $(strip $(STARTED)),python tests/services/run.py $(strip $(STARTED)) --)
# A single broker holds one copy, which tidegate refuses unless told otherwise.
DEMO_WAL = $(if $(filter kafka,$(WAL)),--wal '{kafka}' --allow-unsafe,$(if $(WAL),--wal '$(WAL)'))
STORE_URL = $(if $(REDIS),{redis},$(if $(CASSANDRA),{cassandra},$(STORE)))
DEMO_STORE = $(if $(STORE),--store '$(STORE_URL)')

# make oldest SPARK=4.0: that Spark, with today's libraries.
SPARK ?=
OLDEST_ENV = .venv-$(or $(SPARK),oldest)
OLDEST = $(RUN) python tools/oldest.py $(OLDEST_ENV) $(SPARK)
IN_OLDEST = TIDEGATE_VENV=$(CURDIR)/$(OLDEST_ENV) $(RUN)
# Older releases of Spark leave sockets to the garbage collector.
LEFT_OPEN = -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning

.PHONY: help setup demo check test full oldest locked lock audit fuzz lint format types docs wheel simulate sweep power-cuts torture game-day prove mutants coverage clean

help: ## Say what there is to run
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 18

setup: ## Make .venv from tools/requirements.lock and find Java (every target below does it first; FLOAT=1: the newest libraries)
	@FLOAT='$(FLOAT)' tools/setup

# In files the demo needs a part of the libraries only, and no servers.
demo: ## Run the demo on real departures (WAL=kafka STORE=redis or cassandra start servers; or URLs)
	@FLOAT='$(FLOAT)' tools/setup $(if $(WAL)$(STORE),,demo)
	$(RUN) $(ON_SERVERS) tidegate demo $(DEMO_WAL) $(DEMO_STORE)
	@echo '(`tools/run bash` opens a shell that has these commands)'

check: setup lint types ## Check style, types and the unit tests, without servers or Spark: a few minutes
	$(RUN) pytest -n $(JOBS) --dist loadgroup -m "not slow and not spark" tests/unit tests/repo --ignore tests/repo/test_packaging.py $(PYTEST_ARGS)

test: setup ## Prove the promise on real servers, the newest Spark and the oldest, in some minutes: tests/selection.toml
	$(RUN) python tools/tests.py oldest -- $(LEFT_OPEN) $(PYTEST_ARGS)
	$(RUN) python tools/tests.py promise -- $(PYTEST_ARGS)

full: setup ## Run all tests, the slow ones too, room by room (ROOM=wal: that room alone)
	$(RUN) python tools/tests.py $(if $(ROOM),room $(ROOM),all) -- $(PYTEST_ARGS)

oldest: setup ## Run plain tests and Spark's with the oldest libraries that pyproject.toml admits (SPARK=4.0: Spark's alone, on the newest 4.0)
	$(OLDEST)
	$(if $(SPARK),,$(IN_OLDEST) pytest -n $(JOBS) -m "not slow and not spark" tests/unit tests/conformance tests/services/redis/rights/test_tls.py $(PYTEST_ARGS))
	$(IN_OLDEST) pytest -m "spark and not slow" tests/spark $(LEFT_OPEN) $(PYTEST_ARGS)

locked: setup ## Run plain tests with exactly the libraries of tools/requirements.lock, by their hashes (in .venv-locked)
	$(RUN) python tools/locked.py make .venv-locked
	@cp .venv/java-home .venv-locked/ 2>/dev/null || true
	TIDEGATE_VENV=$(CURDIR)/.venv-locked $(RUN) pytest -n $(JOBS) -m "not slow and not spark" tests/unit tests/conformance $(PYTEST_ARGS)

lock: setup ## Write tools/requirements.lock from scratch: the newest versions that fit
	$(RUN) python tools/locked.py write

audit: setup ## Ask PyPI whether anything in tools/requirements.lock has a known vulnerability
	$(RUN) python tools/locked.py audit

fuzz: setup ## Fuzz what is read from log and store, guided by coverage (FUZZ_S=60 seconds for each target)
	$(RUN) python tools/fuzz.py --seconds $(FUZZ_S)

lint: setup ## Check style and format
	$(RUN) ruff check $(CODE)
	$(RUN) ruff format --check $(CODE)

format: setup ## Format the code and mend what ruff can mend
	$(RUN) ruff check --fix-only --quiet $(CODE)
	$(RUN) ruff format $(CODE)

types: setup ## Check types, strictly, through the link tree
	$(RUN) python tools/link_tree.py
	$(RUN) mypy

docs: setup ## Build the documentation as a site, build/site (its tools go into .venv-docs)
	@test -x .venv-docs/bin/python || python3 -m venv .venv-docs
	@.venv-docs/bin/pip install -q --disable-pip-version-check -r tools/docs-requirements.txt
	$(RUN) python tools/link_tree.py
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --clean

wheel: setup ## Build the wheel and the sdist of the last commit, in dist/: the same bytes each time
	@rm -rf dist
	$(RUN) python tools/packages.py build dist

simulate: setup ## Simulate N schedules from SEED; the same seed repeats the same run
	$(RUN) python -m simulation.run --schedules $(N) --workers $(JOBS) --seed $(SEED) $(SIMULATE_ARGS)

SWEEP = $(if $(filter kafka,$(WAL)),tests/services/support/kafka/sweep/run.py,-m crash.sweep.run)
sweep: setup ## Kill a driver at every I/O it does, finish in every way (WAL=kafka: at every request and reply)
	$(RUN) python $(SWEEP) --jobs $(JOBS) $(SWEEP_ARGS)

power-cuts: setup ## Lose what was not synced, behind every change a driver makes, and finish in every way (needs strace)
	$(RUN) python -m crash.power.run --jobs $(JOBS) $(POWER_CUT_ARGS)

TORTURE_WAL = $(if $(filter kafka,$(WAL)),--wal '{kafka}' --allow-unsafe,--wal '$(or $(WAL),file:///tmp/tidegate-torture/wal)')
TORTURE_STORE = --store '$(or $(STORE_URL),sqlite:///tmp/tidegate-torture/store)'
torture: setup ## Run the whole crash table (WAL=kafka STORE=redis or cassandra start servers; or URLs)
	$(RUN) $(ON_SERVERS) tidegate torture $(TORTURE_WAL) $(TORTURE_STORE) --jobs $(JOBS) $(TORTURE_ARGS)

GAME_DAY_ARGS ?=
game-day: setup ## Play incidents on real servers and print what readers, operators and alerts saw (GAME_DAY_ARGS="--only redis-killed")
	$(RUN) python -m game_day.run $(GAME_DAY_ARGS)

prove: setup ## Try a share of each suite, three broken rules too, in some ten minutes, and write one page (PROVE_ARGS="--seed 7")
	$(RUN) python tools/prove.py $(PROVE_ARGS)

mutants: setup ## Break the protocol on purpose, rule by rule, and see a test notice each
	$(RUN) python tools/mutants.py

coverage: setup ## Measure which lines and branches of commit, records and layouts the plain tests reach; all, or it fails
	@rm -rf build/coverage && mkdir -p build/coverage
	$(RUN) pytest -n $(JOBS) --dist loadgroup -m "not slow and not spark" tests/unit tests/conformance --cov --cov-report= --cov-fail-under=0
	$(RUN) coverage report

clean: ## Remove what the other targets made, .venv too
	rm -rf .venv .venv-oldest .venv-[0-9]* .venv-locked .venv-fuzz .types build dist *.egg-info src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf .services artifacts derby.log metastore_db spark-warehouse
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
