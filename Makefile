# `make demo` and `make test`; `make help` lists all targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PYTHONWARNINGS=ignore $(BIN)/pip --disable-pip-version-check --quiet
DATA_PACKAGES := encoders/unidic/pyproject.toml encoders/weights/pyproject.toml
PACKAGES := capsearch engine encoders indexer ui benchmarks
JOBS ?= 2
CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser)
export CHROMIUM

.DEFAULT_GOAL := help
.PHONY: help demo test lint types pytest elastic format bench clean

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo  ## install, index some images, search them in three languages
	@$(BIN)/python -m capsearch.ui.cli.demo .demo

test: lint types pytest  ## everything that must pass: ruff, mypy, pytest

lint: $(VENV)/.test  ## ruff: errors and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.test  ## mypy --strict
	@$(BIN)/mypy -p capsearch

pytest: $(VENV)/.test  ## the tests alone, two files at a time (JOBS=2; 0: in one process)
	@test -x "$(CHROMIUM)" || echo "note: no chromium found, so the browser tests are skipped (with CI=true they fail);" \
	  "on Debian or Ubuntu: apt-get install chromium fonts-noto-cjk, or set CHROMIUM=/path/to/it"
	@$(BIN)/pytest -n $(JOBS) --dist loadfile

elastic: $(VENV)/.test  ## the tests that need an Elasticsearch, which they start; downloaded once
	@$(BIN)/pytest -m "elastic and not slow" -rs

format: $(VENV)/.test  ## format the code and fix what ruff can fix
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.test  ## retrieval figures: make bench DATA=folder SPLIT=name
	@test -n "$(DATA)" || { echo "DATA is missing: make bench DATA=folder SPLIT=name"; exit 2; }
	@$(BIN)/capsearch bench retrieval --data "$(DATA)" $(if $(SPLIT),--split "$(SPLIT)")

clean:  ## remove everything these targets created
	rm -rf $(VENV) .demo build dist *.egg-info encoders/*/build encoders/*/*.egg-info .mypy_cache .ruff_cache .pytest_cache tests/output
	find $(PACKAGES) tests -name __pycache__ -prune -exec rm -rf {} +

# Stamps: a second run installs nothing unless pyproject.toml or the constraints changed.
$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "capsearch needs Python 3.10 or newer: make PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
	  || { echo "Python's venv is missing; on Debian or Ubuntu: apt-get install python3-venv"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade "pip>=25.1"  # the first with --group
	@touch $@

# --no-deps: only the image files of these two packages are used.
$(VENV)/.demo: pyproject.toml $(DATA_PACKAGES) $(VENV)/.venv
	$(PIP) install ./encoders/unidic --editable encoders/weights --editable .
	$(PIP) install --no-deps scikit-image scikit-learn
	@touch $@

$(VENV)/.test: pyproject.toml $(DATA_PACKAGES) requirements/constraints.txt $(VENV)/.venv
	$(PIP) install --constraint requirements/constraints.txt ./encoders/unidic --editable encoders/weights --editable ".[ui,train,clip,heif,jxl,elastic,bench]" --group test
	@touch $@
