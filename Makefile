# Every task of the project. A target sets up what it needs first; see tools/ for how.

PYTHON ?= python3
RUN := .venv/bin/python
# Options for the command behind a target, for example: make test ARGS="-k lanes -x"
ARGS ?=
# Processes that share the tests and one stack. Most tests wait more than they compute, hence more than cores.
WORKERS ?= 6
PYTEST := $(RUN) -m pytest -n $(WORKERS)
# Where it is set, each of the hundreds of processes that tests start would compile the whole package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-unit test-all test-pure coverage sanitize check docs helm format bench soak histories tla lock \
	dist clean
# Targets share the virtual environment and the cores; side by side they would disturb each other.
.NOTPARALLEL:

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv with everything; the other targets do this themselves
	@command -v "$(PYTHON)" >/dev/null || { \
		echo "setup: $(PYTHON) was not found: install Python 3.11 or newer, or name one:" \
			"make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -m tools.setup

demo: setup ## durable subscriptions at work on a real Kafka (SHORT=1: a short run; CHAOS=1: and everything breaks)
	@$(RUN) -m examples.demo $(if $(SHORT),--short) $(if $(CHAOS),--chaos) $(ARGS)

test: setup ## all tests but the long ones (WORKERS=1: one after the other)
	@$(PYTEST) -m "not long" $(ARGS)

test-unit: setup ## the tests that start no server and no other process
	@$(RUN) -m pytest tests/unit $(ARGS)

test-all: setup ## all tests, then test-pure
	@$(PYTEST) $(ARGS)
	@$(if $(ARGS),,$(MAKE) --no-print-directory test-pure)

test-pure: setup ## the tests of subscriptions and producers without the compiled client
	@KAFKADUR_PURE=1 $(PYTEST) -m "not long" $(or $(ARGS),tests/integration/subscriptions tests/integration/client)

coverage: setup ## the tests of `make test`, with the lines and branches they cover; fails below the bound
	@$(RUN) -m coverage erase
	@COVERAGE_PROCESS_START=pyproject.toml $(PYTEST) -m "not long" $(ARGS)
	@$(RUN) -m coverage combine --quiet
	@$(RUN) -m coverage html --quiet --fail-under=0
	@$(RUN) -m coverage report

tla: setup ## the larger models of docs/internals/tla with TLC: a quarter of an hour (ARGS=name: only that one)
	@$(RUN) -m tools.tla $(ARGS)

sanitize: setup ## the tests of the compiled client under AddressSanitizer
	@$(RUN) -m tools.sanitize $(ARGS)

check: setup ## format, lint, types, Lua, chart, import direction, generated files, documents
	@$(RUN) -m tools.check

docs: setup ## the documentation as a site with a search, in build/docs
	@$(RUN) -m tools.docs

helm: setup ## build Helm, for the checks of the chart, where there is none
	@$(RUN) -m tools.helm

format: setup ## format the Python files and fix what can be fixed without thinking
	@$(RUN) -m ruff format .
	@$(RUN) -m ruff check --fix .

bench: setup ## all benchmarks
	@for workload in drain window1 turns fanout latency first failover amplification; do \
		$(RUN) -m benchmarks $$workload $(ARGS) || exit 1; done
	@$(RUN) -m benchmarks.publishing
	@$(RUN) -m benchmarks.rebuild
	@$(RUN) -m benchmarks.holes
	@$(RUN) -m benchmarks growth --curves leases,members,subscriptions,memory
	@$(RUN) -m benchmarks.startup
	@$(RUN) -m benchmarks spark

soak: setup ## a long run under load, restarts and small faults, with a report in build/soak (HOURS=1)
	@$(RUN) -m benchmarks.soak --hours $(or $(HOURS),1) $(ARGS)

histories: setup ## real processes through all kinds of faults, checked (ARGS="--minutes 10 --seed 7")
	@$(RUN) -m tests.end_to_end.histories run $(ARGS)

# No host of a package index and no path of a machine may get into the lock: mirrors are the user's choice.
lock: setup ## write requirements.lock from pyproject.toml (UPGRADE=1: with the newest versions)
	@$(RUN) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-header --all-extras --group build --group dev --group gateway --group spark $(if $(UPGRADE),--upgrade) \
		--output-file requirements.lock pyproject.toml

dist: setup ## build the source distribution and the wheel, and try them in an environment of their own
	@$(RUN) -m tools.dist

clean: ## remove .venv and all that tools and tests left in the checkout
	rm -rf .venv build dist htmlcov .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
