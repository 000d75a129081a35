# Baton's front desk. Every target that needs the environment makes it first.

PYTHON ?= python3
BIN := .venv/bin

# Of pyproject.toml; by default dev, and gpu where there is an NVIDIA driver.
export EXTRAS
export PYTHONUNBUFFERED = 1
# Threads that wait must not spin: tests run engines beside worker processes on the same cores.
export GOMP_SPINCOUNT ?= 1000

.DEFAULT_GOAL := help
.PHONY: help setup demo wheel test test-cluster soak lint format proto clean

help:  ## Show this list
	@echo "Baton serves language models on a cluster. Try: make demo"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Make .venv with everything in it (Python 3.11 or 3.12; minutes once, then a second)
	@$(PYTHON) scripts/setup.py

demo: setup  ## Serve SmolLM2 with a prefill and a decode worker, stream an answer, show where the time went
	@$(BIN)/python scripts/demo.py

test: setup  ## Run every test that needs no GPU
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not gpu and not soak and not alone" -n 2 --dist worksteal \
		tests/e2e tests/faults tests/integration tests/unit $(ARGS)
	$(BIN)/python -m pytest -m "alone and not soak" tests $(ARGS)

test-cluster: setup  ## Run deploy/cluster.yaml on three machines in namespaces (root, Debian packages, 10 minutes)
	$(BIN)/python -m pytest -m cluster -x -v tests/cluster $(ARGS)

wheel: setup  ## Build dist/baton_llm-*.whl, which deploy/cluster.yaml installs on every machine
	rm -rf build dist
	SOURCE_DATE_EPOCH=946684800 $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

soak: setup  ## Run the long tests: some hours, figures printed (BATON_SOAK_ROUNDS, BATON_SOAK_SECONDS)
	$(BIN)/python -m pytest -m soak -s --hypothesis-profile=soak $(ARGS)

lint: setup  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## Rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: setup  ## Regenerate the gRPC stubs in rpc/baton from proto/
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=rpc --pyi_out=rpc --grpc_python_out=rpc proto/baton/v1/*.proto
	sed -i 's/^from baton\.v1/from rpc.baton.v1/' rpc/baton/v1/*_pb2.py rpc/baton/v1/*_pb2.pyi rpc/baton/v1/*_pb2_grpc.py
	touch rpc/baton/__init__.py rpc/baton/v1/__init__.py

clean:  ## Remove .venv and everything that tools left behind
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
