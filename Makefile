# Every target makes the environment it needs: a clone and Python >= 3.11 are enough.
PYTHON  ?= python3
PROFILE ?= quick
VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready

.PHONY: setup reproduce test lint bench notebooks clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dpjax needs Python 3.11 or newer, found " + sys.version.split()[0] + "; name one with PYTHON=/path/to/python")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

reproduce: setup
	$(BIN)/python -m experiments run all --profile $(PROFILE); status=$$?; \
	$(BIN)/python -m experiments report && exit $$status

test: setup
	$(BIN)/python -m pytest -n 2

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m experiments.bench

notebooks: setup
	$(BIN)/python -m notebooks

clean:
	rm -rf $(VENV) results
