# make demo   complete eight partial identifiers with the embedded model
# make test   tests, doctests, ruff and mypy --strict; PYTEST_ARGS="-k cut" adds pytest options
#
# Both make .venv first, with the python3 of PYTHON.

PYTHON ?= python3
PYTEST_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test clean
.DELETE_ON_ERROR:

demo: $(READY)
	$(BIN)/charwise demo

test: $(READY)
	$(BIN)/python -m pytest $(PYTEST_ARGS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# torch comes first and alone: its version, and with it the CPU build, is the constraint's.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	touch $@

clean:
	rm -rf $(VENV)
