"""Derives each worker's configuration from the flags, the model and the machine. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from common.kv_groups import RequestPages
from common.ports import PortRange
from engine.config import EngineConfig, SchedulerConfig
from engine.device.defaults import PREFILL_CHUNK, defaults_for
from engine.kv_cache.slot_count import wanted_slots
from engine.loader.checkpoint import Checkpoint, resolve
from engine.loader.vocabulary import same_vocabulary
from engine.model_config.draft_heads import drafts_as_head
from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_spec import ModelSpec
from engine.model_config.quantization import WeightFormat
from engine.model_config.shard import Shard
from engine.presets import PRESETS, Preset
from prefill_worker.preferences import prefill_engine_config
from router.config.choices import Device, Dtype, KVCacheDtype, Mode, Quantization
from router.config.settings import RouterConfig
from router.worker_config.accelerators import memory_of
from router.worker_config.scheduler_plan import scheduler_for
from worker.config import TierConfig, WorkerConfig, WorkerRole

__all__ = [
    "Machine",
    "PlanError",
    "PoolEstimate",
    "WorkerPlan",
    "device_for",
    "estimate_pool",
    "plan_workers",
]

_BYTES_PER_VALUE: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}

_CPU_POOL_TOKENS: Final = 16_384
_CPU_CHUNK_TOKENS: Final = 256
"""About a third of a second on two cores for a 135M model, by which a chunk may delay running answers."""
_ATTENTION_RATE: Final = 0.75
"""Throughput of attention relative to that of matrix products: 516 of 690 TFLOP/s on an H200."""
_GPU_MEMORY_FRACTION: Final = 0.9


class PlanError(Exception):
    """The flags do not fit the model or the machine; the message says which flag to change."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine on which a worker will run."""

    device: str
    """"cpu" or "cuda"."""
    memory_bytes: int
    """Memory of the GPU; on a CPU a rank's share of free main memory."""
    cpus: int
    """CPU cores for each rank of a worker."""
    host: str
    """The address that its workers listen on."""
    cpu_dtype: str = "float32"
    """The dtype for --dtype auto on a CPU."""


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    config: WorkerConfig
    cpus: int
    """For each of its ranks."""
    gpus: int
    """For each of its ranks."""
    accelerator: str | None = None
    """Ray's accelerator type of its node; None for any."""

    @property
    def ranks(self) -> int:
        return self.config.engine.tensor_parallel_size

    def named(self, worker_id: str) -> WorkerPlan:
        """That of another worker of the same role."""
        return replace(self, config=replace(self.config, worker_id=worker_id))


def plan_workers(config: RouterConfig, checkpoint: Checkpoint, machine: Machine) -> list[WorkerPlan]:
    """One plan per worker, prefill workers first. Raises PlanError, UnsupportedModel."""
    roles = [WorkerRole.PREFILL] * config.num_prefill_workers + [WorkerRole.DECODE] * config.decode_workers
    engines = {role: _engine(config, checkpoint, machine, role) for role in set(roles)}
    if config.mode is Mode.DISAGG:
        engines[WorkerRole.PREFILL] = prefill_engine_config(engines[WorkerRole.PREFILL])
    ports = config.cluster.worker_ports
    counts = dict.fromkeys(WorkerRole, 0)
    plans = []
    for role in roles:
        worker = WorkerConfig(
            worker_id=f"{role.value}-{counts[role]}",
            role=role,
            model=config.served_model_name or checkpoint.name,
            source=config.model,
            engine=engines[role],
            mode=config.mode.value,
            metric_names=config.operation.metrics_names,
            tiers=_tiers(config),
            transport=config.kv_transport.value if config.has_transport else None,
            kv_by_ranks=config.has_transport and config.num_ranks > len(roles),
            host=machine.host,
            network=config.cluster.worker_network,
            ports=None if ports is None else PortRange.parse(ports),
            log_format=config.operation.log_format.value,
            decode_log_interval=config.operation.decode_log_interval,
            handoff_timeout_s=config.handoff_timeout,
            step_timeout_s=config.failover.step_timeout,
            router_timeout_s=config.failover.router_timeout,
        )
        counts[role] += 1
        prefill = role is WorkerRole.PREFILL
        accelerator = config.for_role(prefill=prefill).accelerator
        on_gpu = machine.device == "cuda"
        if accelerator is not None and not on_gpu:
            flag = config.flag_for("accelerator", prefill=prefill)
            raise PlanError(f"{flag} {accelerator} needs GPUs, but the workers run on the CPU")
        plans.append(WorkerPlan(worker, cpus=machine.cpus, gpus=int(on_gpu), accelerator=accelerator))
    return plans


@dataclass(frozen=True, slots=True)
class PoolEstimate:
    """Estimated KV pool of one worker before loading. GPU workers measure the remaining memory instead."""

    dtype: str
    token_bytes: int
    tokens: int
    """Of the longest requests: windows make room for more of them than `token_bytes` says."""
    longest: int
    """Tokens of the largest request that the pool holds, and the model or --max-model-len allows."""


def estimate_pool(config: RouterConfig, checkpoint: Checkpoint, machine: Machine) -> PoolEstimate:
    """Raises PlanError, UnsupportedModel."""
    spec = _spec(config, checkpoint)
    dtype, limit = _dtype(config, spec, machine), _model_limit(config, checkpoint, spec)
    weight_bytes = _weight_bytes(checkpoint, spec, dtype, machine.device)
    scheduler = _scheduler(config, spec, machine, WorkerRole.DECODE, ranks=1)
    taken = weight_bytes + _step_bytes(scheduler, spec, dtype, limit)
    states = _state_bytes(config, scheduler, spec, dtype)
    pool_tokens = _pool_tokens(config, checkpoint, spec, machine, dtype, limit, taken, states)
    num_pages, pages = _num_pages(config, spec, pool_tokens), _request_pages(config, spec, scheduler, limit)
    longest = pages.largest_request(num_pages, limit)
    tokens = pages.tokens_in(num_pages, longest)
    return PoolEstimate(_kv_dtype(config, dtype), _token_bytes(config, spec, dtype), tokens, longest)


def _engine(config: RouterConfig, checkpoint: Checkpoint, machine: Machine, role: WorkerRole) -> EngineConfig:
    spec = _spec(config.for_role(prefill=role is WorkerRole.PREFILL), checkpoint)
    part = _part(config, checkpoint, spec, role)
    config = config.for_role(prefill=role is WorkerRole.PREFILL)
    machine, ranks = _where(config, machine), config.tensor_parallel_size
    dtype = _dtype(config, spec, machine)
    limit = _model_limit(config, checkpoint, spec)
    scheduler = _with_draft_model(_scheduler(config, part, machine, role, ranks), config, checkpoint)
    taken = _weight_bytes(checkpoint, spec, dtype, machine.device) // ranks
    taken += _step_bytes(scheduler, part, dtype, limit)
    states = _state_bytes(config, scheduler, part, dtype)
    pool_tokens = _pool_tokens(config, checkpoint, part, machine, dtype, limit, taken, states)
    num_pages = _num_pages(config, part, pool_tokens)
    longest = _request_pages(config, part, scheduler, limit).largest_request(num_pages, limit)
    if config.max_model_len is not None and longest < limit:
        raise PlanError(
            f"--max-model-len {limit} does not fit the KV pool, which holds a request of {longest} tokens;"
            " lower it, or raise --kv-pool-tokens or --kv-memory-fraction"
        )
    if config.scheduling.disable_chunked_prefill and scheduler.prefill_limit(longest) < longest:
        raise PlanError(
            f"with --disable-chunked-prefill a step of {scheduler.prefill_limit(longest)} tokens cannot hold"
            f" a prompt of {longest}; raise --chunked-prefill-size, or lower --max-model-len"
        )
    on_gpu = machine.device == "cuda"
    graphs = _graphs(config, machine, ranks)
    # A GPU worker measures what its largest step leaves; `pool_tokens` is an estimate, to fail early.
    profiled = on_gpu and config.kv_pool_tokens is None
    return EngineConfig(
        model_path=checkpoint.path,
        device=machine.device,
        dtype=dtype,
        load_format=config.load_format,
        quantization=_quantization(config),
        fp8_kv=config.kv_cache_dtype is KVCacheDtype.FP8,
        page_size=config.page_size,
        num_pages=0 if profiled else num_pages,
        num_state_slots=config.state_slots,
        kv_memory_fraction=config.kv_memory_fraction or _GPU_MEMORY_FRACTION,
        max_model_len=longest,
        scheduler=scheduler,
        radix_cache=not config.disable_radix_cache,
        overlap=on_gpu,
        cuda_graph_max_batch=graphs.batch,
        cuda_graph_max_tokens=graphs.tokens,
        tensor_parallel_size=ranks,
        expert_parallel_size=config.expert_parallel_size,
    )


def _tiers(config: RouterConfig) -> TierConfig | None:
    if not config.host_kv_gb:
        return None
    directory = config.disk_kv_dir
    return TierConfig(
        host_bytes=int(config.host_kv_gb * 2**30),
        disk_dir=None if directory is None else Path(directory),
        disk_bytes=0 if directory is None else int(config.disk_kv_gb * 2**30),
    )


def _with_draft_model(
    scheduler: SchedulerConfig, config: RouterConfig, checkpoint: Checkpoint
) -> SchedulerConfig:
    """Raises PlanError for a draft model with other tokens, or a head of another model."""
    name = config.scheduling.speculative_model
    if name is None or scheduler.speculation is None:
        return scheduler
    folder = resolve(name).path
    try:
        is_head = drafts_as_head(checkpoint.spec(), ModelSpec.from_folder(folder))
    except UnsupportedModel as error:
        raise PlanError(f"--speculative-model {name}: {error}") from None
    if not is_head and not same_vocabulary(checkpoint.path, folder):
        raise PlanError(
            f"--speculative-model {name} does not have the tokens of {checkpoint.name}, which it would guess;"
            " use a model of the same family"
        )
    return replace(scheduler, speculation=replace(scheduler.speculation, model_path=folder))


def _where(config: RouterConfig, machine: Machine) -> Machine:
    """The machine on nodes with the requested accelerator."""
    memory = memory_of(config.accelerator)
    return machine if memory is None else replace(machine, memory_bytes=memory)


def _part(config: RouterConfig, checkpoint: Checkpoint, spec: ModelSpec, role: WorkerRole) -> ModelSpec:
    """The shape of a rank's part of the model."""
    prefill = role is WorkerRole.PREFILL
    ranks = config.ranks(prefill=prefill)
    try:
        return Shard(0, ranks).of(spec)
    except UnsupportedModel as error:
        flag = config.flag_for("tensor_parallel_size", prefill=prefill)
        raise PlanError(f"{flag} {ranks} does not suit {checkpoint.name}: {error}") from None


def _dtype(config: RouterConfig, spec: ModelSpec, machine: Machine) -> str:
    if config.dtype is not Dtype.AUTO:
        return str(config.dtype.value)
    if machine.device == "cpu":
        return machine.cpu_dtype
    return spec.dtype if spec.dtype in ("bfloat16", "float16") else "bfloat16"


def _model_limit(config: RouterConfig, checkpoint: Checkpoint, spec: ModelSpec) -> int:
    if config.max_model_len is None:
        return spec.max_position
    if config.max_model_len > spec.max_position:
        raise PlanError(
            f"--max-model-len {config.max_model_len} is more than {checkpoint.name} can do;"
            f" use {spec.max_position} or less"
        )
    return config.max_model_len


def _pool_tokens(
    config: RouterConfig,
    checkpoint: Checkpoint,
    part: ModelSpec,
    machine: Machine,
    dtype: str,
    limit: int,
    taken: int,
    states: int,
) -> int:
    """For tokens that no window drops, a multiple of the page size. `part`, `taken` by weights and
    activations, and the most bytes for recurrent `states` are of one rank.

    The memory fraction means the same on every device: the share of weights, activations and pool together.
    """
    page = config.page_size
    if config.kv_pool_tokens is not None:
        return config.kv_pool_tokens // page * page
    if config.kv_memory_fraction is None and machine.device == "cpu":
        return math.ceil(max(_CPU_POOL_TOKENS, limit) / page) * page
    fraction = config.kv_memory_fraction or _GPU_MEMORY_FRACTION
    left = int(machine.memory_bytes * fraction) - taken
    left -= min(states, left // 2) if machine.device == "cuda" else states
    tokens = left // _token_bytes(config, part, dtype) // page * page
    if tokens < page:
        raise PlanError(
            f"{checkpoint.name} leaves no room for KV within {100 * fraction:g}% of"
            f" {machine.memory_bytes / 2**30:.1f} GiB of memory; raise --kv-memory-fraction, or use"
            " --dtype bfloat16, a smaller model, or more ranks (--tensor-parallel-size)"
        )
    return tokens


def _num_pages(config: RouterConfig, part: ModelSpec, pool_tokens: int) -> int:
    """A block of tokens has a page in every group of layers."""
    return pool_tokens // config.page_size * len(part.kv_groups)


def _request_pages(
    config: RouterConfig, part: ModelSpec, scheduler: SchedulerConfig, limit: int
) -> RequestPages:
    return RequestPages.of_groups(config.page_size, part.kv_groups, scheduler.largest_chunk(limit))


def _state_bytes(config: RouterConfig, scheduler: SchedulerConfig, part: ModelSpec, dtype: str) -> int:
    """Of all slots for recurrent states, as many as wanted."""
    if part.delta is None:
        return 0
    slots = wanted_slots(config.state_slots, scheduler.max_running_requests)
    return slots * part.delta.state_bytes(_BYTES_PER_VALUE[dtype])


def _token_bytes(config: RouterConfig, spec: ModelSpec, dtype: str) -> int:
    return int(spec.kv_token_bytes(_BYTES_PER_VALUE[_kv_dtype(config, dtype)]))


def _kv_dtype(config: RouterConfig, dtype: str) -> str:
    return "fp8" if config.kv_cache_dtype is KVCacheDtype.FP8 else dtype


def _quantization(config: RouterConfig) -> str | None:
    return None if config.quantization is Quantization.AUTO else str(config.quantization.value)


def _spec(config: RouterConfig, checkpoint: Checkpoint) -> ModelSpec:
    """Raises PlanError, UnsupportedModel."""
    try:
        spec = checkpoint.spec().quantized(_quantization(config))
        spec = spec.with_expert_parallel(config.expert_parallel_size)
    except UnsupportedModel as error:
        raise PlanError(f"{checkpoint.name}: {error}") from None
    if spec.eagle is not None:
        raise PlanError(f"{checkpoint.name} is an EAGLE-3 head; use it as --speculative-model of its model")
    return spec


def _weight_bytes(checkpoint: Checkpoint, spec: ModelSpec, dtype: str, device: str) -> int:
    """Size in memory: from the size on disk, or if weights are quantized, from the number of parameters.

    Where they may be dequantized, their size is that of dense ones.
    """
    if spec.quantization is not None:
        values = _BYTES_PER_VALUE[dtype]
        stays = device == "cuda" and spec.quantization.format is not WeightFormat.GGUF
        return int(spec.weight_bytes(values) if stays else spec.parameters * values)
    stored = sum(file.stat().st_size for file in checkpoint.path.glob("*.safetensors"))
    return stored * _BYTES_PER_VALUE[dtype] // _BYTES_PER_VALUE.get(spec.dtype, 2)


def _step_bytes(scheduler: SchedulerConfig, part: ModelSpec, dtype: str, limit: int) -> int:
    """Estimated activations and logits of the largest step. A GPU worker measures them."""
    running = scheduler.max_running_requests
    tokens = scheduler.prefill_limit(limit) + running
    features = 2 * part.hidden_size + 2 * part.widest_mlp + 2 * part.q_size + 2 * part.kv_size
    logits = 2 * running * part.vocab_size  # and a copy to sample from, in float32
    return tokens * features * _BYTES_PER_VALUE[dtype] + logits * _BYTES_PER_VALUE["float32"]


def _scheduler(
    config: RouterConfig, part: ModelSpec, machine: Machine, role: WorkerRole, ranks: int
) -> SchedulerConfig:
    return scheduler_for(
        config,
        chunk=_chunk_budget(config, machine, role, ranks),
        on_gpu=machine.device == "cuda",
        costly_context=_ATTENTION_RATE * part.balanced_context,
    )


@dataclass(frozen=True, slots=True)
class _Graphs:
    """Sizes of the largest CUDA graphs; 0: none."""

    batch: int = 0
    tokens: int = 0


def _graphs(config: RouterConfig, machine: Machine, ranks: int) -> _Graphs:
    batch, tokens = config.cuda_graph_max_bs, config.cuda_graph_max_tokens
    if machine.device == "cpu":
        return _Graphs()
    suited = defaults_for(machine.memory_bytes, ranks)
    return _Graphs(
        batch=suited.graph_batch if batch is None else batch,
        tokens=suited.graph_tokens if tokens is None else tokens,
    )


def _chunk_budget(config: RouterConfig, machine: Machine, role: WorkerRole, ranks: int) -> int | None:
    asked = config.chunked_prefill_size
    if asked == -1:
        return None
    if asked is not None:
        return asked
    if config.scheduling.preset is not Preset.BATON:
        return PRESETS[config.scheduling.preset].scheduler.chunk_budget
    on_cpu = machine.device == "cpu"
    tokens = _CPU_CHUNK_TOKENS if on_cpu else defaults_for(machine.memory_bytes, ranks).chunk_budget
    if role is WorkerRole.PREFILL or config.mode is Mode.ADAPTIVE:  # every worker prefills
        tokens = min(tokens, PREFILL_CHUNK)
    return max(tokens // config.page_size, 1) * config.page_size


def device_for(asked: Device, num_gpus: float) -> str:
    """The device of --device. Raises PlanError if it is cuda and there is no GPU."""
    if asked is Device.CUDA and num_gpus < 1:
        raise PlanError("--device cuda, but Ray finds no GPU; check nvidia-smi, or use --device cpu")
    if asked is Device.AUTO:
        return "cuda" if num_gpus >= 1 else "cpu"
    return str(asked.value)
