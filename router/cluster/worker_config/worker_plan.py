"""Derives each worker's configuration from the flags, the model and the machine. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from common.ports import PortRange
from encode_worker.role import EncodeWorker
from engine.config import UNIFORM, EngineConfig, SchedulerConfig
from engine.device.defaults import defaults_for
from engine.device.sizes_by_memory import SizesByMemory, chunk_of, whole_pages
from engine.media.support import image_refusal
from engine.model_config.balanced_context import balanced_context
from engine.model_config.draft_heads import drafts_as_head, mtp_head
from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_spec import ModelSpec
from engine.model_config.pooling_spec import PoolingSpec, pooling_of
from engine.model_config.shard import Shard
from engine.modeling.loader.checkpoint import Checkpoint, resolve
from engine.modeling.loader.vocabulary import same_vocabulary
from engine.sched.presets import PRESETS, Preset
from prefill_worker.role import PrefillWorker
from router.cluster.worker_config.machine import Machine, PlanError, on_accelerator
from router.cluster.worker_config.pool_size import (
    GPU_MEMORY_FRACTION,
    PoolSize,
    dtype_of,
    model_limit,
    pool_size,
)
from router.cluster.worker_config.reproducible import gpu_obstacles, obstacles
from router.cluster.worker_config.scheduler_plan import scheduler_for
from router.config.choices import KVCacheDtype, LogprobsMode, Mode, QuantizationChoice
from router.config.settings import RouterConfig
from worker.config import TierConfig, WorkerConfig, WorkerRole

_CPU_CHUNK_TOKENS: Final = 256
"""About a third of a second on two cores for a 135M model, by which a chunk may delay running answers."""
_ATTENTION_RATE: Final = 0.75
"""Throughput of attention relative to that of matrix products: 516 of 690 TFLOP/s on an H200."""


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
        """Plan of another worker of the same role."""
        return replace(self, config=replace(self.config, worker_id=worker_id))


def plan_workers(config: RouterConfig, checkpoint: Checkpoint, machine: Machine) -> list[WorkerPlan]:
    """One plan per worker: prefill workers first, encode workers last. Raises PlanError, UnsupportedModel."""
    roles = [
        *[WorkerRole.PREFILL] * config.num_prefill_workers,
        *[WorkerRole.DECODE] * config.decode_workers,
        *[WorkerRole.ENCODE] * config.encode_workers,
    ]
    engines = {role: _engine(config, checkpoint, machine, role) for role in set(roles)}
    _require_equal_ranks(config, _spec(config, checkpoint))
    if config.mode is Mode.DISAGG:
        engines[WorkerRole.PREFILL] = PrefillWorker.engine(engines[WorkerRole.PREFILL])
    if WorkerRole.ENCODE in engines:
        engines[WorkerRole.ENCODE] = _encode_engine(engines[WorkerRole.ENCODE], checkpoint)
    ports = config.cluster.worker_ports
    counts = dict.fromkeys(WorkerRole, 0)
    plans = []
    for role in roles:
        encodes = role is WorkerRole.ENCODE
        has_kv = config.has_transport and not encodes
        worker = WorkerConfig(
            worker_id=f"{role.value}-{counts[role]}",
            role=role,
            model=config.served_model_name or checkpoint.name,
            source=config.model,
            engine=engines[role],
            sizes=SizesByMemory() if encodes else _sizes(config, engines[role], role),
            mode=config.mode.value,
            metric_names=config.operation.metrics_names,
            tiers=None if encodes else _tiers(config),
            transport=config.kv_transport.value if has_kv else None,
            identify_weights=config.operation.identify_weights or config.has_transport,
            kv_by_ranks=has_kv and config.num_ranks > len(roles),
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


def _encode_engine(engine: EngineConfig, checkpoint: Checkpoint) -> EngineConfig:
    """Raises PlanError if there would be nothing to encode."""
    if reason := image_refusal(engine, checkpoint.spec()):
        raise PlanError(f"--encode-workers: {checkpoint.name} takes no images: {reason}; leave it out")
    return EncodeWorker.engine(engine)


def estimate_pool(config: RouterConfig, checkpoint: Checkpoint, machine: Machine) -> PoolSize:
    """Pool size of a decode worker with one rank. Raises PlanError, UnsupportedModel."""
    spec = _spec(config, checkpoint)
    scheduler = _scheduler(config, spec, machine, WorkerRole.DECODE, ranks=1)
    return pool_size(config, checkpoint, spec, spec, machine, scheduler, ranks=1)


def _engine(config: RouterConfig, checkpoint: Checkpoint, machine: Machine, role: WorkerRole) -> EngineConfig:
    spec = _spec(config.for_role(prefill=role is WorkerRole.PREFILL), checkpoint)
    part = _part(config, checkpoint, spec, role)
    config = config.for_role(prefill=role is WorkerRole.PREFILL)
    machine, ranks = on_accelerator(config, machine), config.tensor_parallel_size
    scheduler = _with_draft_model(_scheduler(config, part, machine, role, ranks), config, checkpoint)
    pool = pool_size(config, checkpoint, spec, part, machine, scheduler, ranks)
    longest, limit = pool.longest, model_limit(config, checkpoint, spec)
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
    why = obstacles(spec, machine.device, ranks)
    if machine.device == "cuda":
        why += gpu_obstacles(config, spec, dtype_of(config, spec, machine))
    if config.reproducible and why:
        raise PlanError(f"--reproducible: not possible here, since {'; '.join(why)}")
    pooling = pooling_for(config, checkpoint)
    if pooling is not None and config.adapters.engine is not None:
        raise PlanError(f"--enable-lora: {checkpoint.name} computes vectors, for which there are no adapters")
    if config.enable_return_routed_experts and (
        spec.experts is None or spec.general is not None or pooling is not None
    ):
        raise PlanError(
            f"--enable-return-routed-experts: {checkpoint.name} is no model with experts whose choice the"
            " workers see; leave it out"
        )
    if config.access.logprobs_mode is LogprobsMode.PROCESSED and machine.device == "cuda":
        raise PlanError(
            "--logprobs-mode processed: the sampling kernels of a GPU report the model's own"
            " log-probabilities; leave it out, or use --device cpu"
        )
    encodes = spec.attention.bidirectional
    if pooling is not None:
        longest = min(longest, pooling.max_length or longest)
        scheduler = replace(scheduler, speculation=None)
    if encodes:
        scheduler = _for_whole_prompts(scheduler, longest)
    on_gpu = machine.device == "cuda"
    graphs = _graphs(config, machine, spec, ranks)
    # A GPU worker measures what its largest step leaves; `pool` is an estimate, to fail early.
    profiled = on_gpu and config.kv_pool_tokens is None
    return EngineConfig(
        model_path=checkpoint.path,
        device=machine.device,
        dtype=dtype_of(config, spec, machine),
        load_format=config.load_format,
        quantization=_quantization(config),
        model_impl=config.model_impl,
        language_model_only=config.language_model_only,
        fp8_kv=config.kv_cache_dtype is KVCacheDtype.FP8,
        page_size=config.page_size,
        num_pages=0 if profiled else pool.num_pages,
        num_state_slots=config.state_slots,
        kv_memory_fraction=config.kv_memory_fraction or GPU_MEMORY_FRACTION,
        max_model_len=longest,
        scheduler=scheduler,
        radix_cache=not (config.disable_radix_cache or encodes),
        pooling=pooling,
        retained_kv_share=config.retained_kv_share,
        overlap=on_gpu,
        cuda_graph_max_batch=graphs.batch,
        cuda_graph_max_tokens=graphs.tokens,
        tensor_parallel_size=ranks,
        expert_parallel_size=config.expert_parallel_size,
        lora=config.adapters.engine,
        attention_backend=UNIFORM if config.reproducible else "auto",
        return_routed_experts=config.enable_return_routed_experts,
        processed_logprobs=config.access.logprobs_mode is LogprobsMode.PROCESSED,
    )


def pooling_for(config: RouterConfig, checkpoint: Checkpoint) -> PoolingSpec | None:
    """How prompts become vectors; None: the model generates text. Raises PlanError, UnsupportedModel."""
    try:
        return pooling_of(checkpoint.path, checkpoint.spec(), config.effective_convert, config.pooler_config)
    except UnsupportedModel as error:
        raise PlanError(f"{checkpoint.name}: {error}") from None


def _for_whole_prompts(scheduler: SchedulerConfig, longest: int) -> SchedulerConfig:
    """An encoder's steps hold whole prompts, and have no decodes beside them."""
    return replace(
        scheduler.without_step_targets(),
        chunk_budget=None,
        chunked_prefill=False,
        max_prefill_tokens=max(scheduler.chunk_budget or 0, longest),
        long_prefill_token_threshold=None,
        max_long_partial_prefills=None,
        fair_partial_prefills=False,
        max_partial_prefills=None,
    )


def _tiers(config: RouterConfig) -> TierConfig | None:
    if not config.host_kv_gb:
        return None
    directory, url = config.disk_kv_dir, config.object_kv_url
    disk_gb = config.object_kv_gb if url is not None else config.disk_kv_gb if directory is not None else 0.0
    return TierConfig(
        host_bytes=int(config.host_kv_gb * 2**30),
        disk_dir=None if directory is None else Path(directory),
        object_url=url,
        second_tier_bytes=int(disk_gb * 2**30),
    )


def _with_draft_model(
    scheduler: SchedulerConfig, config: RouterConfig, checkpoint: Checkpoint
) -> SchedulerConfig:
    """Raises PlanError for a draft model with other tokens, or a head of another model or of none."""
    name = config.scheduling.speculative_model
    if scheduler.speculation is not None and scheduler.speculation.mtp:
        try:
            mtp_head(checkpoint.spec(config.model_impl))
        except UnsupportedModel as error:
            raise PlanError(f"--speculative mtp: {error}") from None
    if name is None or scheduler.speculation is None:
        return scheduler
    folder = resolve(name).path
    try:
        is_head = drafts_as_head(checkpoint.spec(config.model_impl), ModelSpec.from_folder(folder))
    except UnsupportedModel as error:
        raise PlanError(f"--speculative-model {name}: {error}") from None
    if is_head and checkpoint.spec(config.model_impl).general is not None:
        raise PlanError(
            f"--speculative-model {name} is a head, to which transformers' modules show no hidden states; use"
            " a model that drafts, or --speculative ngram"
        )
    if not is_head and not same_vocabulary(checkpoint.path, folder):
        raise PlanError(
            f"--speculative-model {name} does not have the tokens of {checkpoint.name}, which it would guess;"
            " use a model of the same family"
        )
    return replace(scheduler, speculation=replace(scheduler.speculation, model_path=folder))


def _require_equal_ranks(config: RouterConfig, spec: ModelSpec) -> None:
    """Raises PlanError where pages cannot be cut into the parts that other workers hold."""
    prefill, decode = (config.ranks(prefill=prefill) for prefill in (True, False))
    if config.num_prefill_workers and prefill != decode and spec.attention.other_heads is not None:
        flags = [config.flag_for("tensor_parallel_size", prefill=prefill) for prefill in (True, False)]
        raise PlanError(
            f"{flags[0]} {prefill} and {flags[1]} {decode}: layers of this model have heads of different"
            " sizes, and its KV is handed over between equal numbers of ranks only; use one number for both"
        )


def _part(config: RouterConfig, checkpoint: Checkpoint, spec: ModelSpec, role: WorkerRole) -> ModelSpec:
    """The shape of a rank's part of the model."""
    prefill = role is WorkerRole.PREFILL
    ranks = config.ranks(prefill=prefill)
    try:
        return Shard(0, ranks).of(spec)
    except UnsupportedModel as error:
        flag = config.flag_for("tensor_parallel_size", prefill=prefill)
        raise PlanError(f"{flag} {ranks} does not suit {checkpoint.name}: {error}") from None


def _quantization(config: RouterConfig) -> str | None:
    return None if config.quantization is QuantizationChoice.AUTO else str(config.quantization.value)


def _spec(config: RouterConfig, checkpoint: Checkpoint) -> ModelSpec:
    """Raises PlanError, UnsupportedModel."""
    try:
        spec = checkpoint.spec(config.model_impl).quantized(_quantization(config))
        spec = spec.with_expert_parallel(config.expert_parallel_size)
    except UnsupportedModel as error:
        raise PlanError(f"{checkpoint.name}: {error}") from None
    if pooling_for(config, checkpoint) is not None:
        spec = spec.without_vocabulary()
    if spec.eagle is not None:
        raise PlanError(f"{checkpoint.name} is an EAGLE-3 head; use it as --speculative-model of its model")
    return spec


def _scheduler(
    config: RouterConfig, part: ModelSpec, machine: Machine, role: WorkerRole, ranks: int
) -> SchedulerConfig:
    scheduler = scheduler_for(
        config,
        chunk=_chunk_budget(config, machine, role, ranks),
        on_gpu=machine.device == "cuda",
        costly_context=_ATTENTION_RATE * balanced_context(part),
    )
    speculation = scheduler.speculation
    if part.recurrent is not None and speculation is not None and not speculation.reserves:
        return replace(scheduler, speculation=None)  # verify steps keep the inputs of recurrent layers
    return scheduler


@dataclass(frozen=True, slots=True)
class _Graphs:
    """Sizes of the largest CUDA graphs; 0: none."""

    batch: int = 0
    tokens: int = 0


def _graphs(config: RouterConfig, machine: Machine, spec: ModelSpec, ranks: int) -> _Graphs:
    batch, tokens = config.cuda_graph_max_bs, config.cuda_graph_max_tokens
    if machine.device == "cpu" or (spec.general is not None and spec.general.waits):
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
    if machine.device == "cpu":
        return whole_pages(_CPU_CHUNK_TOKENS, config.page_size)
    only_prefills = _only_prefills(config, role)
    return chunk_of(machine.memory_bytes, ranks, config.page_size, only_prefills=only_prefills)


def _only_prefills(config: RouterConfig, role: WorkerRole) -> bool:
    return role is WorkerRole.PREFILL or config.mode is Mode.ADAPTIVE  # where every worker prefills


def _sizes(config: RouterConfig, engine: EngineConfig, role: WorkerRole) -> SizesByMemory:
    """Sizes that a worker derives again, from its own GPU."""
    if engine.device == "cpu":
        return SizesByMemory()
    own = config.for_role(prefill=role is WorkerRole.PREFILL)
    is_own = own.scheduling.preset is Preset.BATON
    return SizesByMemory(
        # Without chunks, a smaller step might not hold the longest prompt.
        chunk=own.chunked_prefill_size is None and is_own and engine.scheduler.chunked_prefill,
        graph_batch=own.cuda_graph_max_bs is None and engine.cuda_graph_max_batch > 0,
        graph_tokens=own.cuda_graph_max_tokens is None,
        only_prefills=_only_prefills(config, role),
    )
