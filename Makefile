# One target each. The environment of the README, unless PYTHON names another one.
PYTHON ?= .venv/bin/python
PARITY ?= .venv-parity/bin/python
CONFIG ?= configs/llama_ruler.py

.PHONY: run test lint type smoke parity report readme

run:
	$(PYTHON) launch.py --config=$(CONFIG)

test:
	$(PYTHON) -m pytest

lint:
	$(PYTHON) -m ruff check .

type:
	$(PYTHON) -m mypy

smoke:
	$(PYTHON) launch.py --config=configs/tiny.py

# Needs: python3 -m venv .venv-parity && .venv-parity/bin/pip install -r requirements-parity.txt
parity:
	XLA_FLAGS= $(PARITY) -m pytest -o norecursedirs=.git tests/parity

report:
	$(PYTHON) -m experiments.report $(RUN)

readme:
	$(PYTHON) tools/readme.py
