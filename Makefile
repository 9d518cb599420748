# Every target sets up .venv by itself, from constraints.txt, when it is missing or stale.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Bytecode is made when a module is first imported: most modules of what is installed never are.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

.PHONY: demo dist docs docs-serve test test-slow test-integrations lint faults bench bench-run bench-training bench-grow bench-bands bench-verdict bench-verdict-digits bench-check bench-sde bench-logs bench-store bench-lab bench-language results calculator tutorials clean setup

demo: $(READY)
	$(BIN)/rootscale demo

test: lint
	$(BIN)/python -m pytest -q -n 2 --dist loadscope -m "not slow"

test-slow: $(READY)
	$(BIN)/python -m pytest -q -m slow

# Against all the real libraries: those of `make test`, and the many that it leaves out. They have an environment of their
# own, because some of them hold others back: mlflow, for one, goes with an older python-dateutil.
# `make test-integrations VERSIONS=/dev/null` takes the newest of everything.
VERSIONS ?= constraints-integrations.txt
WITH_ALL := build/integrations
WITH_ALL_BIN := $(WITH_ALL)/bin
WITH_ALL_INSTALL := $(WITH_ALL_BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
	--retries 10 --timeout 60 --constraint $(VERSIONS)
WITH_ALL_TEST := $(WITH_ALL_BIN)/python -m pytest -q -n 2 --dist loadscope -m "not slow" --environment integrations
# JAX starts threads, and a process with threads cannot be forked safely: its tests run by themselves.
WITH_JAX := tests/integrations/test_optax.py docs/integrations/optax.md src/rootscale/integrations/optax
test-integrations: $(WITH_ALL)/.ready
	$(WITH_ALL_TEST) $(WITH_JAX)
	$(WITH_ALL_TEST) tests/integrations tests/training/test_libraries.py tests/theory/test_updates.py tests/test_logs.py \
		tests/test_examples.py docs/integrations docs/optimizers.md src/rootscale/integrations \
		$(addprefix --ignore=,$(WITH_JAX))

# torchao alone is compiled: its modules have escapes that warn where they are, and warnings are errors in tests.
$(WITH_ALL)/.ready: $(VERSIONS) pyproject.toml
	rm -rf $(WITH_ALL)
	$(PYTHON) -m venv $(WITH_ALL)
	$(WITH_ALL_INSTALL) torch && $(WITH_ALL_INSTALL) --editable ".[integrations]" || { \
		echo "the libraries of test-integrations could not be installed: is the package index within reach?" >&2; exit 1; }
	$(WITH_ALL_BIN)/python -W ignore -m compileall -q $$($(WITH_ALL_BIN)/python -c \
		'import sysconfig; print(sysconfig.get_path("purelib"))')/torchao
	@touch $@

# The site in build/site, with the pages of the studies. Examples that fail, dead links and missing anchors are errors.
docs: results
	$(BIN)/python -m pytest -q README.md docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --livereload --watch website --watch results --watch src

# The package as it is published: sdist and wheel in dist/, checked, and tried in a fresh environment. Plans need no
# torch, so that none is installed for that.
RELEASE := build/release
RELEASE_INSTALL := $(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
dist:
	rm -rf dist
	$(PYTHON) -m venv --clear $(RELEASE)
	$(RELEASE_INSTALL) build hatchling twine
	$(RELEASE)/bin/python -m build --no-isolation
	$(RELEASE)/bin/twine check --strict dist/*
	$(PYTHON) -m venv --clear $(RELEASE)
	$(RELEASE_INSTALL) numpy rich
	$(RELEASE_INSTALL) --no-deps dist/*.whl
	cd $(RELEASE) && bin/rootscale --version
	cd $(RELEASE) && bin/rootscale scale --optimizer adam --lr 1e-3 --batch-size 16 --to 64

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: bench-run bench-training bench-grow bench-grow

bench-run: $(READY)
	$(BIN)/python benchmarks/run.py

bench-training: $(READY)
	$(BIN)/python benchmarks/training.py

# The time of measuring while a batch grows, as a share of the run.
bench-grow: $(READY)
	$(BIN)/python benchmarks/grow.py

# The coverage of the check's confidence bands, and how often its verdict is wrong; both take long and resume.
bench-bands: $(READY)
	$(BIN)/python benchmarks/bands.py

bench-verdict: $(READY)
	$(BIN)/python benchmarks/verdict.py

# The same on runs of digits that are trained for it; forty minutes.
bench-verdict-digits: $(READY)
	$(BIN)/python benchmarks/verdict_digits.py

# How long a check of a conv net takes on a CPU, now and as it was measured before.
bench-check: $(READY)
	$(BIN)/python benchmarks/check_cost.py

# Kills, signals and full disks, 200 in all, while runs are made; the table goes into docs/promises.md.
faults: $(READY)
	$(BIN)/python -W ignore benchmarks/faults.py --write

bench-sde: $(READY)
	$(INSTALL) --editable ".[bench-sde]"
	$(BIN)/python benchmarks/sde.py

# Long logs: the command against polars reading the same files.
bench-logs: $(READY)
	$(INSTALL) --editable ".[logs]"
	$(BIN)/python benchmarks/logs.py

# The lab against a plain loop and against transformers.Trainer; DEVICE=cuda measures a GPU.
DEVICE ?= cpu
bench-store: $(READY)
	$(BIN)/python benchmarks/store.py

bench-lab: $(READY)
	$(BIN)/python benchmarks/lab.py --device $(DEVICE)

bench-language: $(READY)
	PYTHONPATH=experiments $(BIN)/python benchmarks/language.py --device $(DEVICE)

# The table of all claims and the figures in results/ from the stored data; a page of each study in build/results.
results: $(READY)
	$(BIN)/python experiments/evidence.py
	$(BIN)/python website/calculator_tables.py
	$(BIN)/python website/registry.py
	$(BIN)/python experiments/results.py --pages build/results

# The data of docs/calculator from the tables of the package.
calculator: $(READY)
	$(BIN)/python website/calculator_tables.py

# The tutorials whose code has changed, run anew; ALL=--all for all of them, some minutes.
tutorials: $(READY)
	$(BIN)/python website/tutorials.py $(ALL)

setup: $(READY)

# torch first and by itself: the pin decides which build pip takes, whatever else depends on torch.
$(READY): constraints.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "python3.11 or newer is needed on the PATH (or: make PYTHON=/path/to/python)" >&2; exit 2; }
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) --editable ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) build dist demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
