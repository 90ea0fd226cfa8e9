# `make demo` and `make test` set up what they need in .venv; nothing but Python and make has to be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test lint format clean

setup: $(READY)

# torch first and alone: the pinned version is the one our machines have as a CPU build.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# Until a trained model ships with the package, the demo draws the regions of a photograph that scikit-image carries.
demo: $(READY)
	$(BIN)/pip install --quiet --no-deps --constraint constraints.txt scikit-image
	$(BIN)/python scripts/demo.py --output demo.png

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV)
