# make demo | test | test-all | check | lint | docs | release | bench | screenshots: each sets itself up on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What a run needs and no more, unless the developers' environment is there already.
DEMO := $(if $(wildcard $(STAMP)),$(VENV),.demo)
PIP := -m pip install --quiet --constraint constraints.txt
# One test that hangs ends its process, which is replaced once: a second one ends the run.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --max-worker-restart 1
# Tests start hundreds of processes: without byte code each compiles the whole library (5 s of 10).
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all check mutants lint docs docs-version docs-venv release bill bench bench-peers paper screenshots venv clean help

.DEFAULT_GOAL := help

help:
	@echo "make demo   four algorithms on 100 simulated clients, checked against expected results (two minutes, with the installation)"
	@echo "make test   the tests (four minutes on two cores)"
	@echo "make test-all   those that take long too: launched ranks, kills, the whole battery"
	@echo "make check FILE=moon   lint, types, tests, battery and wrong edits of one file"
	@echo "make mutants  which small wrong edits the tests notice (minutes); MUTANTS='kt_pfl fold' for a part"
	@echo "make lint   format, lint, types"
	@echo "make docs   the documentation site in build/site, strictly: a link that leads nowhere fails (a minute with the installation)"
	@echo "make docs-version  these pages as those of this version, beside earlier ones, in the branch gh-pages; pushes nothing"
	@echo "make release  sdists and wheels of HEAD in dist/, fedloom's and fedloom-papers', tried with each extra, each Python and the lowest versions, and a bill of materials (half an hour; goes on where it was stopped); publishes nothing"
	@echo "make bill   what the environment of the tests holds, CycloneDX, in dist/ (seconds)"
	@echo "make bench  speed, as ratios in one run (minutes)"
	@echo "make bench-peers  fedloom, hand-written PyTorch and other simulators do the same work in turn: docs/peers-speed.md (12 minutes at a time, after the installation)"
	@echo "make paper  docs/paper/fedloom.pdf, four pages whose numbers come from kept results"
	@echo "make screenshots  the page of results in a real browser, its size and seconds; RUNS='runs/two' for your own"

$(STAMP): pyproject.toml papers/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) --editable ".[dev]" --editable papers
	@touch $(STAMP)

# Not compiled, which takes longer than all the rest: a run imports a small part of it, and compiles that.
.demo/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .demo
	.demo/bin/python $(PIP) --no-compile --editable .
	@touch .demo/.installed

venv: $(STAMP)

demo: $(DEMO)/.installed
	$(DEMO)/bin/fedloom demo

test: $(STAMP)
	$(PYTEST) $(PYTEST_ARGS)

# Three processes on two cores, since many tests wait for processes that they start.
test-all: $(STAMP)
	$(PYTEST) -n 3 --no-loadscope-reorder -m "slow or not slow" $(PYTEST_ARGS)

check: $(STAMP)
	$(BIN)/python scripts/check.py $(FILE)

mutants: $(STAMP)
	$(BIN)/python tests/mutants/mutants.py $(MUTANTS)

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Neither PyTorch nor fedloom is needed: pages are laid out from text, names read from the source.
.docs/.installed: constraints.txt
	$(PYTHON) -m venv .docs
	.docs/bin/python $(PIP) mkdocs mkdocs-material "mkdocstrings[python]" mike zensical ruff
	@touch .docs/.installed

docs-venv: .docs/.installed

# BUILDER=zensical: the same pages by the successor of mkdocs-material, which reads the same mkdocs.yml.
BUILDER ?= mkdocs
VERSION_OF_DOCS = $(shell sed -n 's/^__version__ = "\([0-9]*\.[0-9]*\).*/\1/p' src/fedloom/__init__.py)
docs: .docs/.installed
	.docs/bin/python scripts/make_site.py
	NO_MKDOCS_2_WARNING=1 .docs/bin/$(BUILDER) build --strict
	@echo "build/site/index.html; with search: python3 -m http.server --directory build/site"

# Beside those of other versions, in the branch gh-pages of this repository, which it does not push.
docs-version: .docs/.installed
	.docs/bin/python scripts/make_site.py
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/.docs/bin:$$PATH" .docs/bin/mike deploy --update-aliases $(VERSION_OF_DOCS) latest
	.docs/bin/mike set-default latest

# PACKAGES=.venv/lib/python3.11/site-packages: try the wheel with these packages, in seconds instead of minutes, and no
# extras. TRIALS="nats lowest-report": some of the trials alone.
release: $(STAMP)
	$(BIN)/python $(PIP) build packaging uv
	$(BIN)/python scripts/make_release.py $(if $(PACKAGES),--packages $(PACKAGES))
	$(if $(PACKAGES),,$(BIN)/python scripts/release_trials.py $(TRIALS))

# What is tested with, of which uv makes CycloneDX's; without network, pip's own list.
bill: $(STAMP)
	-$(BIN)/python $(PIP) uv
	$(BIN)/python scripts/release_trials.py bill

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

# An environment each, outside fedloom's own. BlazeFL 3 asks for Python 3.14; where none starts, its code runs on this
# Python, with annotations unread and two functions without type parameters, which older ones cannot read.
NEWER = $(shell for p in python3.14t python3.14; do $$p -c "" 2>/dev/null && { echo $$p; break; }; done)
.peers/%/.installed: benchmarks/peers/%.txt
	$(PYTHON) -m venv .peers/$*
	.peers/$*/bin/python -m pip install --quiet --requirement $<
	@touch $@

.peers/blazefl/.installed: benchmarks/peers/blazefl.txt
	$(or $(NEWER),$(PYTHON)) -m venv .peers/blazefl
	.peers/blazefl/bin/python -m pip install --quiet --ignore-requires-python --requirement $<
	[ -n "$(NEWER)" ] || find .peers/blazefl/lib -path '*/site-packages/blazefl/*.py' -size +0 -exec sed -i '1i from __future__ import annotations' {} + -exec sed -i 's/^def \([a-z_]*\)\[T\](/def \1(/' {} +
	@touch $@

# What cannot be installed is left out, and named. PEERS_ARGS="--busy 1 --only fedloom,by_hand"
bench-peers: $(STAMP)
	-$(MAKE) --keep-going $(foreach peer,fedjax pfl flower blazefl,.peers/$(peer)/.installed)
	$(BIN)/python benchmarks/peers/run_peers.py $(PEERS_ARGS)

paper: $(STAMP)
	$(BIN)/python $(PIP) typst
	$(BIN)/python scripts/make_paper.py

screenshots: $(STAMP)
	$(BIN)/python $(PIP) playwright
	$(BIN)/python scripts/screenshots.py $(RUNS)

clean:
	rm -rf $(VENV) .demo .docs .peers build dist .pytest_cache .mypy_cache .ruff_cache
