# make demo    installs, and shows a federation under attack
# make test    installs, and runs the tests
#
# TORCH=cpu    installs torch's build without CUDA, on Linux 1.5 instead of 5.4 GB: make demo TORCH=cpu
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Bytecode is kept, also where images of containers forbid it: else each process compiles all that it imports.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --dist worksteal --numprocesses
# Slow tests wait for processes of their own: at least three at a time.
CORES := $(shell getconf _NPROCESSORS_ONLN)
SEVERAL := $(shell echo $$(( $(CORES) > 3 ? $(CORES) : 3 )))

.PHONY: demo test test-slow test-exports generated coverage lint format types check clean

demo: $(VENV)/user
	$(BIN)/phalanx demo

test: $(VENV)/developer
	$(PYTEST) auto -m "not slow"

test-slow: $(VENV)/developer
	$(PYTEST) $(SEVERAL) -m slow

# Names what a new rule, attack or algorithm lacks.
test-exports: $(VENV)/developer
	$(PYTEST) 0 -m exports $$(grep -rl --include='*.py' mark.exports tests)

# Writes what is made of the classes and stored.
generated: $(VENV)/developer
	$(BIN)/python tests/generated.py

coverage: $(VENV)/developer
	$(BIN)/coverage erase
	$(PYTEST) auto -m "not slow" --cov --cov-report= --cov-fail-under 0
	$(PYTEST) $(SEVERAL) -m slow --cov --cov-append --cov-report= --cov-fail-under 0
	$(BIN)/coverage report

lint: $(VENV)/developer
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/developer
	$(BIN)/mypy

check: lint types test test-slow

format: $(VENV)/developer
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV)

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Phalanx needs Python 3.11 or newer, this is " + sys.version.split()[0] + ". Give another one: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/user: $(VENV)/python pyproject.toml constraints.txt
	@echo "Installing Phalanx in $(VENV) (some minutes the first time)"
	$(if $(TORCH),$(PIP) --no-deps --index-url https://download.pytorch.org/whl/$(TORCH) torch)
	$(PIP) --editable .
	@touch $@

$(VENV)/developer: $(VENV)/user
	@echo "Installing what the tests need"
	$(PIP) --editable ".[dev]"
	@echo "Compiling loops, once (a minute or two)"
	-$(BIN)/phalanx doctor --compile
	@touch $@
