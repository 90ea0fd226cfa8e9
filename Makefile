# `make demo` and `make test` set up what they need in .venv; nothing but Python and make has to be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test docs lint format clean

setup: $(READY)

# torch first and alone: the pinned version is the one our machines have as a CPU build.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# The model that ships with the package, at several budgets; nothing is downloaded.
demo: $(READY)
	$(BIN)/rti sample 'a red star left of a blue circle' 'two plain green triangles' \
		'a plain yellow ring above a plain purple square' 'a striped orange cross' 'a cyan moon and a pink circle' \
		--budget dense,128,64,32,16 --regions-of 64 --steps 25 --output demo.png

# One worker for each core, four at most.
test: $(READY)
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

# The site, in site/: pages from docs/, the reference from the docstrings and from the commands' own help.
# Not --quiet: it would silence the very warnings that --strict counts.
docs: $(READY)
	$(BIN)/typer rti.cli utils docs --name rti --output docs/reference/commands.md
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV)
