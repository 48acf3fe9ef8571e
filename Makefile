# make demo     see a recorded hang explained by the real daemon, in under a minute
# make test     the tests, in WORKERS (3) processes: many of them wait
# make web      the console in Chromium (apt-get install chromium), the API under schemathesis
# make score    how often the verdicts are right, on all recorded and reconstructed cases
# make explore  the generated tests with new random input, TIMES (40) times as many
# make soak     the daemon beside 64 growing logs for MINUTES (20): does anything grow?
# make fuzz     hostile lines, rules, configuration, dumps, stacks, answers and requests, MINUTES (15) for each
# make secrets  how many fake secrets are hidden, by kind and by what a program did to the text
# make lock   the exact versions with hashes that image and CI install: deploy/requirements.lock
# make sbom   what the package is made of, as CycloneDX: build/denpexd.cdx.json
# make audit  known weaknesses of those versions, where their lists can be reached
# make docs     what is generated: docs/encyclopedia, the JSON Schema of a rule, docs/openapi.json
# make check    lint, rules and tests: what CI runs
# Each sets up .venv on its own the first time. PYTHON chooses the interpreter: make demo PYTHON=python3.12

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$p" -c '$(NEW_ENOUGH)' 2>/dev/null && { echo "$$p"; break; }; done)
LOCKED := --generate-hashes --universal --python-version 3.11 --no-annotate --custom-compile-command "make lock"
INCIDENT ?=
TIMES ?= 40
WORKERS ?= 3
MINUTES ?=

.PHONY: setup demo test web score secrets explore soak fuzz lint docs lock sbom audit check clean

setup: $(VENV)/.tools

demo: $(VENV)/.package
	@$(BIN)/denpexd demo $(INCIDENT)

test: $(VENV)/.tools
	$(BIN)/pytest -q -n $(WORKERS) -m "not torch and not web"

web: $(VENV)/.tools
	@$(BIN)/pip install -q --group web
	$(BIN)/pytest -q -m web tests/e2e

explore: $(VENV)/.tools
	DENPEXD_EXPLORE=$(TIMES) DENPEXD_NEW_SEEDS=1 $(BIN)/pytest -q --timeout 0 --randomly-seed $$(date +%s) tests/property tests/unit/test_ingest_tail_model.py

fuzz: $(VENV)/.tools
	$(BIN)/python bench/fuzz.py $(or $(MINUTES),15)

soak: $(VENV)/.package
	$(BIN)/python bench/soak.py $(or $(MINUTES),20)

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
	$(BIN)/python -m denpexd.web.openapi > docs/openapi.json

lock: $(VENV)/.package
	@$(BIN)/pip install -q uv
	$(BIN)/uv pip compile -q pyproject.toml --extra all $(LOCKED) -o deploy/requirements.lock
	printf 'hatchling>=1.26\nclick>=8.1\n' | $(BIN)/uv pip compile -q - $(LOCKED) -o deploy/requirements-build.lock

sbom: $(VENV)/.package
	rm -rf build/sbom
	$(PYTHON) -m venv build/sbom/runtime
	build/sbom/runtime/bin/pip install -q --require-hashes -r deploy/requirements.lock
	build/sbom/runtime/bin/pip install -q --no-deps .
	$(PYTHON) -m venv build/sbom/tool
	build/sbom/tool/bin/pip install -q cyclonedx-bom
	build/sbom/tool/bin/cyclonedx-py environment --pyproject pyproject.toml --of JSON -o build/denpexd.cdx.json build/sbom/runtime

audit: $(VENV)/.package
	@$(BIN)/pip install -q pip-audit
	$(BIN)/pip-audit -r deploy/requirements.lock --disable-pip --progress-spinner off

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
