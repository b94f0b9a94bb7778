# Two commands for a fresh machine: `make demo` and `make test`. Both set up .venv first, once.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test quick signals colors slow cluster lint docs browser smoke peers oldest clean

demo: .venv/installed
	$(BIN)/arms demo

test: .venv/installed lint
	$(BIN)/pytest -n 2 --dist worksteal

# The library without the benchmark suite, in under a minute: the loop while you edit.
quick: .venv/installed
	$(BIN)/pytest -n 2 --dist worksteal -q tests/core

# The tests of signals as in the background of a script, where Ctrl-C is ignored.
signals: .venv/installed
	trap '' INT; $(BIN)/pytest -n 2 --dist worksteal -m 'signals and not slow and not cluster'

# The tests of the command line as on a CI system that asks every program for colors.
colors: .venv/installed
	FORCE_COLOR=1 $(BIN)/pytest -n 2 --dist worksteal tests/bench/cli

# The cases that `make test` leaves out, being much like those it runs.
slow: .venv/installed
	$(BIN)/pytest -n 2 --dist worksteal -m slow

# Sweeps on a Ray cluster of two nodes, of which one is lost, and the recipes that need Lightning and Accelerate.
cluster: .venv-cluster/installed
	.venv-cluster/bin/pytest -q -m cluster tests

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/lint-imports

# The documentation site, into site/: index.html there is its first page. It runs the notebooks.
docs: .venv/installed
	rm -rf site
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet --doctree-dir build/doctrees docs site

# The demo's report and the site in a real browser, which is installed where that is possible.
browser: demo docs
	command -v chromium chromedriver > /dev/null || (apt-get update -q && apt-get install -q -y chromium chromium-driver) || true
	ARMS_REPORT=demo/report.html ARMS_SITE=site ARMS_SCREENSHOTS=demo/screenshots $(BIN)/pytest -q tests/browser

# Every figure and table of the paper, in small.
smoke: .venv/installed
	$(BIN)/arms experiments run all --scale smoke --output smoke --device cpu

.venv/installed: EXTRA = dev
.venv-cluster/installed: EXTRA = cluster
.venv/installed .venv-cluster/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "arms needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --constraint constraints.txt --editable '.[$(EXTRA)]'
	touch $@

# A training step beside JAX, NumPyro and loops by hand, half an hour on a quiet machine; on a busy one nothing is written.
peers: .venv-peers/installed
	.venv-peers/bin/python benchmarks/peers/run.py --output benchmarks/results/peers.json

.venv-peers/installed: pyproject.toml constraints.txt benchmarks/peers/requirements.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --constraint constraints.txt --requirement benchmarks/peers/requirements.txt --editable '.[bench]'
	touch $@

# The library's tests on the oldest PyTorch that pyproject.toml admits: several gigabytes, so not part of `make test`.
oldest:
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/pip install --quiet torch==2.8.0 numpy==1.26.4 pytest==9.2.0 hypothesis==6.170.15 mpmath==1.3.0
	PYTHONPATH=src .venv-oldest/bin/python -m pytest -q tests/core

clean:
	rm -rf .venv .venv-cluster .venv-oldest .venv-peers build dist demo smoke site jupyter_execute .pytest_cache .mypy_cache .ruff_cache .hypothesis
