# Every target makes the environment it needs: a clone and Python >= 3.11 are enough.
PYTHON  ?= python3
PROFILE ?= quick
JOBS    ?= 2
VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
PEERS   := build/peers
EXECUTED := $(patsubst %,build/%,$(wildcard notebooks/*.ipynb))
BENCH_PYTHON = $(if $(wildcard $(PEERS)/.ready),$(PEERS)/bin,$(BIN))/python

# Keep freed memory: otherwise glibc returns XLA's large buffers after every step and faults their
# pages in again, which on a CPU can double the time of a step (dpjax.training.keep_freed_memory).
KEEP_MEMORY := MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=68719476736 MALLOC_TOP_PAD_=268435456 \
	MALLOC_ARENA_MAX=1

# The seeds of a row, and some rows, have programs in common, which are compiled once.
KEEP_COMPILED := JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.cache/jax

.PHONY: setup reproduce federated distributed audit test test-slow test-all lint bench bench-setup notebooks docs clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dpjax needs Python 3.11 or newer, found " + sys.version.split()[0] + "; name one with PYTHON=/path/to/python")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

reproduce: setup
	$(KEEP_MEMORY) $(KEEP_COMPILED) $(BIN)/python -m experiments run all --profile $(PROFILE) --jobs $(JOBS); status=$$?; \
	$(BIN)/python -m experiments report && exit $$status

# The Wine regression of ten holders, three nodes and an analyst: processes connected by TLS.
federated: setup
	$(BIN)/python -m experiments.federated

# NoisySGD and DPSVI by 1, 2 and 4 processes of one run, compared; one of them is killed and resumed.
distributed: setup
	$(BIN)/python -m experiments.distributed

# The checks of dpjax.audit on planted bugs, all of which they must catch, and on right programs.
audit: setup
	$(BIN)/python -m dpjax.audit --jobs $(JOBS)

# The quick tests, those marked slow, and both. They keep what they compile in .cache.
test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow'

test-slow: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

test-all: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: setup
	$(KEEP_MEMORY) $(BENCH_PYTHON) -m experiments.benchmarks
	$(BIN)/python -m experiments report >/dev/null

# An environment with the libraries that the benchmark compares with: without it `make bench` runs
# too, and says what it left out. It is apart because torch needs an older mpmath than the tests.
bench-setup:
	$(PYTHON) -m venv $(PEERS)
	grep -v '^mpmath' constraints.txt > $(PEERS)/constraints.txt
	$(PEERS)/bin/python -m pip install --quiet --constraint $(PEERS)/constraints.txt --editable '.[bench]'
	touch $(PEERS)/.ready

# Every tutorial, from a fresh kernel; the executed copies go to build/notebooks.
notebooks: setup
	$(BIN)/python -m notebooks

build/notebooks/%.ipynb: notebooks/%.ipynb | setup
	$(BIN)/python -m notebooks $<

# The site, offline, in build/docs/html: any warning is an error. Tutorials are shown with the outputs
# in build/notebooks; those that are missing, or older than their source, are executed first.
docs: setup $(EXECUTED)
	$(BIN)/python -m sphinx -q -W --keep-going -d build/docs/doctrees docs build/docs/html

clean:
	rm -rf $(VENV) .cache results build/docs build/notebooks build/newer_python
