# Two commands on a fresh machine: `make demo` and `make test`. Each sets up what it needs first, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-for-demo
CODE := producer worker tests ops

.DEFAULT_GOAL := help
.PHONY: help setup demo test slow avx2 chaos fuzz conformance lint type floors check bench gpu-matrix null-gpu format clean

help: ## Show what there is
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 12

setup: $(STAMP) ## Create .venv and install everything into it (done once)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Millstream needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m venv $(VENV)

INSTALL = $(BIN)/python -m pip install --disable-pip-version-check

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "setting up $(VENV) for development (once; torch and its friends take minutes)"
	@$(INSTALL) -c constraints.txt -e '.[dev]'
	@touch $@ $(DEMO_STAMP)

# Nothing but what a person's first run needs.
$(DEMO_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "setting up $(VENV) (once; torch and its friends take minutes)"
	@$(INSTALL) -c constraints.txt -e '.[cli,worker,embedded]'
	@touch $@

demo: $(DEMO_STAMP) ## Run the main job: documents in, streamed tokens and a results file out
	@$(BIN)/python ops/demo/run.py

# Tests start hundreds of processes: each would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

# The tests kill real processes on machines that others use, too: one that fails is run once more, and reported.
# Four processes for two cores, as the tests of workers mostly wait.
PYTEST := $(BIN)/python -m pytest -n 4 --dist loadgroup --reruns 1 -r R

test: $(STAMP) ## Run the fast tests, on Valkey
	@echo "running the fast tests"
	@$(PYTEST) -m "not slow and not alone"

slow: $(STAMP) ## Run the slow tests: long ones, all that runs on Redis, the pins
	@echo "running the slow tests"
	@$(PYTEST) -m "slow and not alone"

# torch, oneDNN and the compiler held down: what a processor that has AVX2 only computes. How models are traced
# is nothing of the processor's.
AVX2 := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 CXX=$(CURDIR)/tests/support/g++-avx2
AVX2_TESTS := tests/engine/runner/native tests/engine/runner/states \
	$(patsubst %,tests/engine/runner/test_%.py,attention equivalence replace replay)
# What the run of all tests shows as well: libraries that name their processor, each further architecture; how
# the library is built, how its work is cut into pieces and who computes them. Of replayed steps, those of a model
# are compared there to the last bit: an engine around it adds nothing of the processor's.
AVX2_ONLY := (not slow or replay) and not avx2_library and not processors_with_less
AVX2_IGNORED := $(patsubst %,--ignore=tests/engine/runner/native/test_%.py,build compiler pieces short_rows team)

avx2: $(STAMP) ## Run the tests of the processor's code as on one with AVX2 only, where this one has more
	@echo "running the tests of AVX2"
	@! grep -qw avx512f /proc/cpuinfo || \
		$(AVX2) $(PYTEST) -n 2 -m "not alone" -k "$(AVX2_ONLY)" $(AVX2_TESTS) $(AVX2_IGNORED)

lint: $(STAMP) ## ruff and the import floors
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(MAKE) --no-print-directory floors

floors: $(STAMP) ## Check that imports go down only
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

type: $(STAMP) ## mypy, strict
	@$(BIN)/mypy

check: lint ## All of it: what CI runs
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target type avx2
	@echo "running all tests"
	@$(PYTEST) -m "not alone"

chaos: $(STAMP) ## The failure suite's long run: kills, stalls, cuts, failovers; a table of what was lost
	@PYTHONPATH=tests $(BIN)/python -m chaos
	@PYTHONPATH=tests $(BIN)/python -m chaos --mutants
	@$(BIN)/python -m pytest -n 0 -m alone

fuzz: $(STAMP) ## Two million inputs, garbage and extreme shapes, for everything that reads from outside
	@PYTHONPATH=tests $(BIN)/python -m fuzz

conformance: $(STAMP) ## Clients and a table of requests before the gateway, each in an environment of its own, and vLLM beside it
	@PYTHONPATH=tests $(BIN)/python -m conformance

bench: $(STAMP) ## Measure: brain, front, engine, queued, in some minutes (ops/bench)
	@$(BIN)/python -m ops.bench default

gpu-matrix: $(STAMP) ## What the Triton kernels take of each kind of GPU, without one: ops/bench/kernels.csv
	@PYTHONPATH=tests $(BIN)/python -m support.engine.kernel_matrix

null-gpu: ## Build the null GPU, 5 GB: the CUDA path without a GPU (ops/pages/running_on_a_gpu.md)
	@$(PYTHON) -m ops.gpu_survey.null_gpu

format: $(STAMP) ## Format the code
	@$(BIN)/ruff format $(CODE)
	@$(BIN)/ruff check --fix --quiet $(CODE)

clean: ## Remove what make created
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
