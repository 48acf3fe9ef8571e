# make demo     see a recorded hang explained by the real daemon, in under a minute
# make test     the tests
# make score    how often the verdicts are right, on all recorded and reconstructed cases
# make explore  the generated tests with new random input, TIMES (40) times as many
# make secrets  how many fake secrets are hidden, by kind and by what a program did to the text
# make docs     what is generated from rules and schema: docs/encyclopedia and the JSON Schema of a rule
# make check    lint, rules and tests: what CI runs
# Each sets up .venv on its own the first time. PYTHON chooses the interpreter: make demo PYTHON=python3.12

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$p" -c '$(NEW_ENOUGH)' 2>/dev/null && { echo "$$p"; break; }; done)
INCIDENT ?=
TIMES ?= 40

.PHONY: setup demo test score secrets explore lint docs check clean

setup: $(VENV)/.tools

demo: $(VENV)/.package
	@$(BIN)/denpexd demo $(INCIDENT)

test: $(VENV)/.tools
	$(BIN)/pytest -q -m "not torch"

explore: $(VENV)/.tools
	DENPEXD_EXPLORE=$(TIMES) DENPEXD_NEW_SEEDS=1 $(BIN)/pytest -q --timeout 0 --randomly-seed $$(date +%s) tests/property tests/unit/test_ingest_tail_model.py

score: $(VENV)/.tools
	$(BIN)/python tests/scoreboard

secrets: $(VENV)/.tools
	$(BIN)/python tests/redaction

lint: $(VENV)/.tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.package
	$(BIN)/denpexd rules schema > denpexd/catalog/rule.schema.json
	$(BIN)/denpexd rules docs docs/encyclopedia

check: lint
	$(BIN)/denpexd rules check
	$(MAKE) test

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis
	find denpexd tests bench docs -name __pycache__ -type d -prune -exec rm -rf {} +

# The package itself, which is all that the demo needs.
$(VENV)/.package: pyproject.toml
	@$(if $(PYTHON),:,echo "make: no Python 3.11 or newer found; install one or say which: make PYTHON=/path/to/python3" >&2; exit 1)
	@$(PYTHON) -c '$(NEW_ENOUGH)' 2>/dev/null || \
		{ echo "make: $(PYTHON) is missing or older than Python 3.11; choose another: make PYTHON=python3.12" >&2; exit 1; }
	@echo "setting up $(VENV) with $(PYTHON) (once, about a minute)"
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "make: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(BIN)/pip install -q --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/pip install -q -e ".[all]"
	@touch $@

# What developers need beside it.
$(VENV)/.tools: $(VENV)/.package
	@$(BIN)/pip install -q --group test --group lint
	@touch $@
