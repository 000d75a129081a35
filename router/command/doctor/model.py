"""Checks that a model can be found, and estimates the KV that fits on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from common.main_memory import available_memory
from engine.device.cpu_dtype import preferred_cpu_dtype
from engine.model_config.errors import UnsupportedModel
from engine.modeling.loader.checkpoint import Checkpoint, CheckpointError, resolve
from router.cluster.worker_config.machine import Machine, PlanError
from router.cluster.worker_config.worker_plan import estimate_pool
from router.command.doctor.gpus import Gpu
from router.command.doctor.report import Finding, fail, ok
from router.config.choices import Dtype
from router.config.settings import RouterConfig

_CHOICES = "use an alias (smollm2), a Hugging Face folder, a .gguf file or a hub id"


def check(config: RouterConfig, gpus: Sequence[Gpu], *, on_gpu: bool) -> Iterator[Finding]:
    try:
        checkpoint = resolve(config.model, keep_codes=config.keeps_codes)
        spec = checkpoint.spec(config.model_impl)
    except (CheckpointError, UnsupportedModel) as error:
        yield fail("weights", f"--model {config.model}: {error}", _CHOICES)
        return
    yield ok("weights", f"{checkpoint.path}: {spec.architecture}, {spec.num_layers} layers, {spec.dtype}")
    memory = min(gpu.memory_bytes for gpu in gpus) if on_gpu else available_memory()
    device = "cuda" if on_gpu else "cpu"
    measured = not on_gpu and config.dtype is Dtype.AUTO
    cpu_dtype = preferred_cpu_dtype() if measured else "float32"
    machine = Machine(device, memory, cpus=1, host="127.0.0.1", cpu_dtype=cpu_dtype)
    yield check_pool(config, checkpoint, machine)


def check_pool(config: RouterConfig, checkpoint: Checkpoint, machine: Machine) -> Finding:
    try:
        pool = estimate_pool(config, checkpoint, machine)
    except PlanError as error:
        return fail("kv pool", str(error), "or give the worker a machine with more memory")
    block = config.page_size * pool.token_bytes
    return ok(
        "kv pool",
        f"{pool.token_bytes:,} bytes a token in {pool.dtype}, {block / 2**20:.2f} MiB a block of"
        f" {config.page_size}; one worker holds about {pool.tokens:,} tokens, requests of up to"
        f" {pool.longest:,}",
    )
