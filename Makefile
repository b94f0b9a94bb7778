# Two commands for a fresh machine: `make demo` and `make test`. Both set up .venv first, once.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint clean

demo: .venv/installed
	$(BIN)/arms demo

test: .venv/installed lint
	$(BIN)/pytest -n 2 --dist worksteal

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "arms needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
