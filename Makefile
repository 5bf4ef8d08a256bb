# Everything a newcomer needs: `make demo` and `make test`. Only Python 3.11 or newer has to be there.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test test-all test-surroundings test-gpu test-cluster lint bench docs clean

demo: $(VENV)/.demo
	$(BIN)/nescio demo

# Two processes of one thread each: the tests of methods took 72 s so, and 85 s with threads that waited for each other's cores.
test: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile -m "not slow and not cluster"

test-all: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile -m "not cluster"

# The suite five times: odd paths, one core, a loaded machine, older CPUs, another user (ONLY=paths for one of them).
test-surroundings: $(VENV)/.dev
	$(BIN)/python tests/support/surroundings.py $(ONLY)

test-gpu: $(VENV)/.dev
	NESCIO_TEST_GPU=1 $(BIN)/pytest -m gpu

# Launchers on engines that really run, on this machine: Ray comes from PyPI, SLURM from Debian.
test-cluster: $(VENV)/.dev $(VENV)/.cluster
	sh tests/cluster/needs.sh
	$(BIN)/pytest -m cluster tests/cluster

lint: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(ONLY)
	$(BIN)/python -m tests.support.generated_docs

# The tables of docs/ that come from the code and from benchmarks/results.json.
docs: $(VENV)/.dev
	$(BIN)/python -m tests.support.generated_docs

$(VENV)/bin/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nescio needs Python 3.11 or newer; name one with make PYTHON=…")'
	$(PYTHON) -m venv $(VENV)

# One stamp per set of extras: an install is repeated only when pyproject.toml changes.
$(VENV)/.demo: pyproject.toml | $(VENV)/bin/pip
	$(BIN)/pip install -q -e '.[train]'
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/pip
	$(BIN)/pip install -q -e '.[dev,train]'
	touch $@

$(VENV)/.cluster: pyproject.toml | $(VENV)/bin/pip
	$(BIN)/pip install -q -e '.[cluster]'
	touch $@

$(VENV)/.bench: pyproject.toml | $(VENV)/bin/pip
	$(BIN)/pip install -q -e '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
