# Every target builds its own environment on first use and is quick afterwards.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Two workers of one thread each: tests are many and small. A file is one worker's, so that what its
# tests share is made once. Files come in their order, which ends with short ones: xdist's own order,
# by number of tests, would end with files of one long test.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-lowest-torch lint format results bench soak docs wheel release-check clean

demo: $(STAMP)
	$(BIN)/batchformer demo

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not gpu"

# The private names of torch that we use, the encoder and `attach` on the lowest torch that
# pyproject.toml allows. TORCH_INDEX may name an index of smaller wheels.
LOWEST := .venv-lowest
test-lowest-torch:
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) numpy pytest hypothesis \
		torch==$(shell sed -n 's/^dependencies = \["torch>=\(.*\)"\]/\1/p' pyproject.toml)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	$(LOWEST)/bin/python -m pytest -m "not slow and not gpu" \
		tests/test_torch_private.py tests/nn tests/plug/test_attach.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Tables of these pages come from the records in results/.
results: $(STAMP)
	$(BIN)/batchformer record --make RESULTS.md README.md docs/should-i-use-it.md docs/results/*.md

bench: $(STAMP)
	OMP_NUM_THREADS=2 $(BIN)/batchformer bench

soak: $(STAMP)
	OMP_NUM_THREADS=2 $(BIN)/python -m pytest -m "slow"

# Every example of the gallery runs; a warning is an error; nothing is fetched but packages.
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	$(BIN)/sphinx-build -q -W --keep-going -b html -d docs/_build/doctrees docs docs/_build/html
	@echo "The site is docs/_build/html/index.html"

wheel: $(STAMP)
	$(BIN)/python -m build --wheel

# What a stranger would install: the wheel in an empty environment, then the README's Python.
release-check: $(STAMP)
	rm -rf dist build/release
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[release]"
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	sed -n '/^```python$$/,/^```$$/{/^```/d;p}' README.md > build/release/readme.py
	cd build/release && bin/python -I readme.py

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) $(LOWEST) build dist runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
