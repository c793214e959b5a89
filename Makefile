# Every target sets up .venv by itself; only Python 3.11 or newer has to be installed before.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One process per core, with one thread each: more threads than cores would take twice as long.
PARALLEL := OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto --maxprocesses 8 --dist worksteal

.PHONY: demo test test-slow test-all faults fuzz examples lint docs figures clean

demo: $(READY)  ## a small search on a CPU, ending in a picture of the front
	$(BIN)/lrnas search studies/demo.toml

test: $(READY)  ## the fast tests
	$(PARALLEL)

test-slow: $(READY)  ## the slow tests that CI runs too
	$(PARALLEL) -m "slow and ci and not gpu"

test-all: $(READY)  ## every test that needs no GPU, except the faults
	$(BIN)/pytest -q -m "not gpu and not faults"

faults: $(READY)  ## searches whose driver, workers, database, disk or clock fails
	$(PARALLEL) -n 3 -m faults tests/faults  # they mostly wait

fuzz: $(READY)  ## 100,000 damaged files; the fast tests read 2,000
	LRNAS_FUZZ=100000 $(PARALLEL) tests/test_fuzz.py

examples: $(READY)  ## the scripts in examples/, some minutes on a CPU
	$(BIN)/pytest -q -m examples tests/test_examples.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

PAGES := build/site_pages
docs: $(READY)  ## the documentation as a site: build/site/index.html
	rm -rf $(PAGES) build/site && mkdir -p $(PAGES)
	git ls-files '*.md' docs results search_spaces studies examples | sort -u | tar -cf - -T - | tar -xf - -C $(PAGES)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

figures: $(READY)  ## the figures of the docs; trains two small networks for the picture of filters, minutes on a CPU
	$(BIN)/lrnas figures --out docs/figures
	$(BIN)/lrnas reproduce nin-c3-lr --data digits --recipe fast --set epochs=3 --out build/figures
	$(BIN)/lrnas filters build/figures/nin-c3-lr-digits-fast-seed0 --out docs/figures/filters.png

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "lrnas needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[train,workers,search,export,plot,dashboard,test,lint,docs]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
