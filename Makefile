# Each target sets up what it needs: see tools/bootstrap.sh.
#
#   PYTHON=...      the interpreter to build .venv with (default: the first 3.11 or newer)
#   DEMO_ARGS=...   more arguments of `suture demo`, for instance a folder to store
#   TEST_ARGS=...   more arguments of pytest; it runs four processes, unless they are files only
#   NAME=...        the benchmarks to run, for instance NAME=tree; the modules to mutate
#   MUTANTS_ARGS=.. more arguments of `make mutants`, for instance --write
#   INTEROP_ARGS=.. more arguments of `make interop`: --json prints one document, --seed 7 damages others
#   MINUTES=...     how long the soak, or the hour beside Ozone, loads and harms its cluster
#   SEED=...        the schedule to repeat or to make small, or the first of COUNT to simulate, in JOBS processes

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test pytest check lint bench mutants simulate replay shrink soak nightly interop spark-versions format deb rpm release try lock outdated site clean python

BIN := .venv/bin
WITH_PROMTOOL := tools="$$(tools/bootstrap.sh promtool)" && PATH="$$PATH$${tools:+:$$tools}"
WITH_BUF := tools="$$(tools/bootstrap.sh buf)" && PATH="$$PATH$${tools:+:$$tools}"
WITH_JAVA := home="$$(tools/bootstrap.sh java)" && JAVA_HOME="$$home"

# Where it is set, as images for containers like to, each of the hundreds of processes that the tests
# start would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

help: ## Show this.
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

demo: python ## Damage a small cluster's disks and watch it heal itself (DEMO_ARGS=...).
	@$(WITH_JAVA) $(BIN)/suture demo $(DEMO_ARGS)

test: python ## Run every check and every test, as CI does (TEST_ARGS=--known-skips: and fails for skips).
	@tools/bootstrap.sh programs
	@$(WITH_PROMTOOL) && $(WITH_BUF) && $(WITH_JAVA) $(MAKE) --no-print-directory -j 2 lint pytest

# The collection compiles each test, which otherwise each of pytest's processes does for itself.
pytest:
	@$(BIN)/pytest --collect-only -qqq $(TEST_ARGS) >/dev/null || true
	@$(BIN)/pytest -n auto $(TEST_ARGS)

check: lint ## Run what is quick: the checks, and the tests of single modules.
	@$(BIN)/pytest -n auto -q --hypothesis-profile=quick tests/unit

lint: python ## Check format, style, types, import contracts and the wire contract.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/vulture
	@$(WITH_BUF) && if command -v buf >/dev/null; then echo "buf lint" && buf lint; fi

bench: python ## Measure; fail where a bound does not hold (NAME=...).
	@$(WITH_JAVA) $(BIN)/python -m bench $(NAME)

mutants: python ## Change the pure modules; show what no test notices (NAME=..., MUTANTS_ARGS=...).
	@nice -n 10 $(BIN)/python -m tools.mutants $(NAME) $(MUTANTS_ARGS)

simulate: python ## Live COUNT schedules of a whole cluster from SEED on (COUNT=1000, JOBS=1, APPEND=tools/simulation/tally.tsv).
	@mkdir -p bench/out
	@$(BIN)/python -m tools.simulation run --count $(or $(COUNT),1000) --seed $(or $(SEED),1) \
	    --jobs $(or $(JOBS),1) --json bench/out/simulation.json $(if $(APPEND),--append $(APPEND))

replay: python ## Live one of these schedules again and tell each step (SEED=...).
	@$(BIN)/python -m tools.simulation replay $(SEED)

shrink: python ## Leave out of a schedule what its violation does not need (SEED=...).
	@$(BIN)/python -m tools.simulation shrink $(SEED)

soak: python ## Load and harm a real cluster for MINUTES, as root with loop devices, and judge it (MINUTES=60).
	@mkdir -p bench/out
	@$(BIN)/python -m tools.soak --minutes $(or $(MINUTES),60) --json bench/out/soak.json

nightly: python ## What takes hours: every test at its full size, 10,000 schedules, an hour of soak.
	@SUTURE_NIGHTLY=1 $(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory simulate COUNT=$(or $(COUNT),10000) JOBS=$(or $(JOBS),1)
	@$(MAKE) --no-print-directory soak
	@$(MAKE) --no-print-directory try

interop: python ## Move, damage and heal containers in a real Ozone cluster, from Maven (NAME=damages, datanode_loss, endurance, led_agent_trial, scrub, secure or serving; MINUTES=60 of endurance; INTEROP_ARGS=--json).
	@$(BIN)/python -m tools.interop$(if $(NAME),.$(NAME)) $(if $(MINUTES),--minutes $(MINUTES)) $(INTEROP_ARGS)

spark-versions: python ## Run the health vectors on the lowest and the highest Spark, installed from PyPI (SPARK=lowest or highest).
	@$(WITH_JAVA) $(BIN)/python tools/spark_versions.py $(SPARK)

format: python ## Format the code and mend what ruff can mend.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

deb: python ## Build dist/suture_*.deb and suture-verify_*.deb, for Debian's and Ubuntu's Pythons from 3.11 on.
	@$(BIN)/python tools/make_deb.py

rpm: python ## Build the same as dist/*.rpm; needs rpmbuild.
	@$(BIN)/python tools/make_rpm.py

release: python ## Build the artifacts of a release in dist/VERSION (VERSION=0.1.0, RELEASE_KEY=...).
	@tools/bootstrap.sh programs
	@$(BIN)/python tools/release.py $(VERSION)

try: deb ## Install the package on three Debian hosts, type the manual's first hour, and purge it, as root (SUITE=bookworm).
	@tools/bootstrap.sh programs
	@$(BIN)/python tools/try_deb.py dist/suture_*.deb $(if $(SUITE),--suite $(SUITE))

LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
    --no-header --upgrade pyproject.toml

lock: python ## Pin the versions that the packages bundle to the newest allowed ones.
	echo pip | $(LOCK) - --extra ozone --output-file tools/packages/agent.lock
	$(LOCK) --extra ozone --extra scm --extra spark --constraint tools/packages/agent.lock \
	    --output-file tools/packages/spark.lock
	$(BIN)/python tools/make_image.py --lock

outdated: python ## List the installed libraries that have a newer version.
	@$(BIN)/uv pip list --python $(BIN)/python --outdated

site: python ## Build the documents as a web site in dist/site.
	$(BIN)/mkdocs build --quiet

clean: ## Remove everything that make created, .venv included.
	rm -rf .venv dist build bench/out .mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	    .import_linter_cache spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

python:
	@tools/bootstrap.sh python
