"""Settings of the `router` command: each stated once, with its flag, help text and default.

The command line, the YAML file and `--help` are derived from the fields of `RouterConfig` and of its groups
(`router.config.table`), so a new setting is one field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from engine.model_config.model_impl import ModelImpl
from engine.model_config.pooling_spec import Convert
from router.config.choices import (
    Device,
    Dtype,
    KVCacheDtype,
    Mode,
    QuantizationChoice,
    Routing,
    RunnerChoice,
    TransportChoice,
)
from router.config.groups.adapters import AdapterSettings
from router.config.groups.media import MediaSettings
from router.config.groups.role import RoleSettings
from router.config.groups.scheduling import SchedulingSettings
from router.config.groups.service import (
    AccessSettings,
    ClusterSettings,
    FailoverSettings,
    FrontendSettings,
    OperationSettings,
)
from router.config.option import Heading, flag_name

_model = Heading("model and mode")
_workers = Heading("workers")
_memory = Heading("device and memory")
_batching = Heading("batching")
_handoff = Heading("KV handoff (--mode disagg and adaptive)")
_routing = Heading("routing and failover")
_pressure = Heading("backpressure (429, RESOURCE_EXHAUSTED)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Every setting of the router. The fields that hold groups are at the place of the group in `--help`."""

    model: str = _model(
        "",
        "model to serve: an alias (smollm2, minilm), a Hugging Face folder, a .gguf file, or a hub id"
        " (OWNER/NAME:Q4_K_M for a GGUF file on the hub); several as NAME=MODEL each",
        "MODEL",
        aliases=("--model-path",),
    )
    served_model_name: str | None = _model(
        None, "model name in API requests and responses (default: the model's own)", "NAME"
    )
    runner: RunnerChoice = _model(
        RunnerChoice.AUTO,
        "generate: text; pooling: embeddings, or scores of a classifier or reward model;"
        " auto: what the model's folder says",
    )
    convert: Convert = _model(
        Convert.AUTO,
        "embed: serve embeddings, also of a model that generates text; classify: serve a classifier's"
        " scores; auto: what the model's folder says",
    )
    pooler_config: str | None = _model(
        None,
        'JSON that overrides how the folder says that prompts are pooled, such as {"pooling_type": "MEAN"}',
        "JSON",
        aliases=("--override-pooler-config",),
    )
    language_model_only: bool = _model(
        False,
        "leave out the vision model of a model that has one: requests with images are refused",
        aliases=("--language-only",),
    )
    hf_overrides: str | None = _model(
        None,
        "JSON of a model of text that scores pairs by two of its tokens, such as"
        ' {"classifier_from_token": ["no", "yes"], "is_original_qwen3_reranker": true} (vLLM\'s); no other'
        " field of config.json can be overridden",
        "JSON",
    )
    mode: Mode = _model(
        Mode.MIXED,
        "mixed: every worker prefills and decodes; disagg: separate prefill and decode workers;"
        " adaptive: the router decides for each request, to meet --ttft-target-ms and --itl-target-ms",
    )

    prefill_workers: int | None = _workers(
        None, "number of prefill workers; with --mode disagg or adaptive (default there: 1)", "N"
    )
    decode_workers: int = _workers(
        1,
        "number of decode workers; in mixed mode they prefill too",
        "N",
        least=1,
        aliases=("--disaggregation-decode-dp", "--dp-size", "--dp", "-dp", "--data-parallel-size"),
    )
    encode_workers: int = _workers(
        0, "number of workers that encode images for the others, with a model that takes images", "N", least=0
    )
    tensor_parallel_size: int = _workers(
        1,
        "tensor-parallel ranks of each worker: processes on one node, one GPU each on cuda",
        "N",
        aliases=("--tp-size", "--tp", "-tp"),
    )
    expert_parallel_size: int = _workers(
        1,
        "groups of a worker's ranks, each with its own experts: a divisor of --tensor-parallel-size"
        " (1: every rank holds a part of each expert)",
        "N",
        aliases=("--ep-size", "--ep"),
    )
    enable_return_routed_experts: bool = _workers(
        False,
        "keep the experts that compute each token, beside its KV, for requests with return_routed_experts",
    )
    accelerator: str | None = _workers(
        None, "Ray accelerator type of the workers' GPUs, such as H100 (default: any)", "TYPE"
    )
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    frontend: FrontendSettings = field(default_factory=FrontendSettings)
    media: MediaSettings = field(default_factory=MediaSettings)
    access: AccessSettings = field(default_factory=AccessSettings)

    device: Device = _memory(Device.AUTO, "device of the workers; auto: cuda if Ray sees GPUs, else cpu")
    dtype: Dtype = _memory(
        Dtype.AUTO,
        "dtype of weights and KV; auto: the checkpoint's 16-bit type on cuda; on cpu bfloat16 if measured"
        " to be faster, else float32",
    )
    reproducible: bool = _memory(
        False,
        "the logits of a token depend on the weights and the tokens before it alone, bit by bit: not on"
        " batch, chunks, prefix hits, worker or restart; slower; on CPUs, H100 and H200",
    )
    load_format: str = _memory("auto", "auto, or dummy for random weights (for benchmarks)", "FORMAT")
    quantization: QuantizationChoice = _memory(
        QuantizationChoice.AUTO,
        "fp8 quantizes the weights of an unquantized model as they are loaded; auto: weights stay as the"
        " checkpoint has them",
        aliases=("-q",),
    )
    model_impl: ModelImpl = _memory(
        ModelImpl.AUTO,
        "whose modules run the model: baton or transformers, which needs the extra transformers; auto:"
        " Baton's, and transformers' for families that Baton does not have",
    )
    kv_cache_dtype: KVCacheDtype = _memory(
        KVCacheDtype.AUTO,
        "dtype of stored keys and values; fp8 (e4m3) with the checkpoint's k_scale and v_scale, or 1.0;"
        " auto: that of --dtype",
    )
    max_model_len: int | None = _memory(
        None,
        "context length: prompt plus output (default: what the model and the KV pool allow)",
        "TOKENS",
        least=2,
        aliases=("--context-length", "--max-seq-len"),
    )
    page_size: int = _memory(16, "tokens per KV page", "TOKENS", aliases=("--block-size", "--kv-block-size"))
    kv_pool_tokens: int | None = _memory(
        None,
        "KV pool size of each worker (default: see --kv-memory-fraction)",
        "TOKENS",
        aliases=("--max-total-tokens",),
    )
    kv_memory_fraction: float | None = _memory(
        None,
        "share of the GPU's memory, or of a CPU's free memory, for weights, activations and KV pool"
        " (default: 0.9 on GPUs; on CPUs a pool of 16384 tokens, or of one longer context)",
        "0..1",
        aliases=("--gpu-memory-utilization", "--mem-fraction-static"),
    )
    host_kv_gb: float = _memory(
        0.0,
        "host memory of each worker for KV that the pool has no room for, in GiB; 0: none",
        "GIB",
        least=0,
    )
    disk_kv_dir: str | None = _memory(
        None,
        "directory on each node for KV that host memory has no room for; it survives a restart of the"
        " workers; needs --host-kv-gb",
        "DIR",
    )
    object_kv_url: str | None = _memory(
        None,
        "bucket of an S3 store for KV that host memory has no room for, shared by all workers; needs"
        " --host-kv-gb, credentials in the environment of the workers, and the extra object-kv",
        "s3://BUCKET/PREFIX[?endpoint=URL]",
    )
    object_kv_gb: float = _memory(
        256.0, "KV in --object-kv-url that each worker keeps account of, in GiB", "GIB", least=0
    )
    disk_kv_gb: float = _memory(16.0, "size limit of --disk-kv-dir for each worker, in GiB", "GIB", least=0)
    retained_kv_share: float = _memory(
        0.25,
        "share of the KV pool and tiers of each worker that the requests of one API key may retain, by"
        " the cache hints of requests; 0: these have no effect",
        "0..1",
    )
    state_slots: int | None = _memory(
        None,
        "slots of each worker for recurrent states: of running requests, and of checkpoints in the prefix"
        " cache (default: twice --max-running-requests; on GPUs at most half of the memory for KV)",
        "COUNT",
        least=1,
    )
    disable_radix_cache: bool = _memory(False, "disable prefix caching")
    adapters: AdapterSettings = field(default_factory=AdapterSettings)

    chunked_prefill_size: int | None = _batching(
        None,
        "token budget of a step; longer prompts are split into chunks; -1 disables chunking"
        " (default: by device)",
        "TOKENS",
        aliases=("--max-num-batched-tokens", "--max-num-tokens"),
    )
    itl_target_ms: float | None = _batching(
        None,
        "target step time while requests decode; prefill chunks are sized to meet it, in adaptive mode by"
        " the mean of all steps; 0 disables it (default: 20 on cuda, 0 on cpu)",
        "MS",
        least=0,
    )
    pause_target_ms: float | None = _batching(
        None,
        "--mode adaptive: target time of steps with prompts beside decodes, which readers see as a pause;"
        " at least --itl-target-ms (default: 1.6 x --itl-target-ms)",
        "MS",
    )
    max_running_requests: int = _batching(
        256,
        "largest number of running requests per worker",
        "N",
        least=1,
        most=65_536,
        scheduler="max_running_requests",
        aliases=("--max-num-seqs", "--max-batch-size"),
    )
    cuda_graph_max_bs: int | None = _batching(
        None,
        "largest decode batch captured as a CUDA graph; 0 disables them (default: by GPU memory)",
        "N",
        least=0,
        aliases=("--max-cudagraph-capture-size",),
    )
    cuda_graph_max_tokens: int | None = _batching(
        None,
        "largest step with prefill captured as piecewise CUDA graphs, attention excluded; 0 disables them"
        " (default: by GPU memory)",
        "TOKENS",
        least=0,
        aliases=("--piecewise-cuda-graph-max-tokens",),
    )
    max_queued_requests: int = _batching(
        4096,
        "largest number of waiting requests per worker; more are refused",
        "N",
        least=1,
        scheduler="max_waiting_requests",
    )

    kv_transport: TransportChoice = _handoff(
        TransportChoice.NIXL,
        "nixl: one-sided writes over UCX; ucxx: two-sided UCX; loopback: one process, for tests",
    )
    pull_kv: bool = _handoff(
        False,
        "copy cached KV from another worker where that is faster than computing it;"
        " workers of --mode mixed then have a KV transport",
    )
    handoff_timeout: float = _handoff(
        60.0,
        "fail a handoff that makes no progress for this long; the prompt is computed again",
        "SECONDS",
        above=0,
    )

    routing: Routing = _routing(Routing.PREFIX_AWARE, "worker selection policy")
    ttft_target_ms: float = _routing(
        500.0,
        "--mode adaptive places requests so that most get their first token within this time",
        "MS",
        above=0,
    )
    failover: FailoverSettings = field(default_factory=FailoverSettings)

    max_queued_tokens: int = _pressure(
        4_000_000,
        "largest number of prompt tokens waiting for their first token; more are refused",
        "TOKENS",
        least=1,
    )
    max_queue_wait: float = _pressure(
        300.0,
        "reject (429) when the estimated queue time exceeds this or the request's own timeout",
        "SECONDS",
        above=0,
    )

    operation: OperationSettings = field(default_factory=OperationSettings)
    scheduling: SchedulingSettings = field(default_factory=SchedulingSettings)
    roles: RoleSettings = field(default_factory=RoleSettings)

    @property
    def effective_convert(self) -> Convert:
        """What `--runner` and `--convert` say together."""
        if self.convert is not Convert.AUTO:
            return self.convert
        return {RunnerChoice.GENERATE: Convert.NONE, RunnerChoice.POOLING: Convert.POOL}.get(
            self.runner, Convert.AUTO
        )

    @property
    def effective_admin_port(self) -> int:
        if self.operation.admin_port is None:
            return self.frontend.http_port + 1 if self.frontend.http_port else 0
        return self.operation.admin_port

    @property
    def num_prefill_workers(self) -> int:
        if self.mode is Mode.MIXED:
            return 0
        return 1 if self.prefill_workers is None else self.prefill_workers

    @property
    def uses_handoffs(self) -> bool:
        """Whether requests move between workers with their KV."""
        return self.mode is not Mode.MIXED

    @property
    def has_transport(self) -> bool:
        """Whether workers can send KV to each other."""
        return self.uses_handoffs or self.pull_kv

    @property
    def keeps_codes(self) -> bool:
        """Whether weights of GGUF files stay integers. `--dtype float32` asks for the values in float32."""
        online = any(value is not QuantizationChoice.AUTO for _, value in self.everywhere("quantization"))
        general = self.model_impl is ModelImpl.TRANSFORMERS
        return self.dtype is not Dtype.FLOAT32 and not online and not general

    def for_role(self, *, prefill: bool) -> RouterConfig:
        """This configuration with the settings of one role in place of those for all workers."""
        own = self.roles.of("prefill" if prefill else "decode")
        for one, other in (
            ("kv_pool_tokens", "kv_memory_fraction"),
            ("kv_memory_fraction", "kv_pool_tokens"),
        ):
            if one in own:
                own.setdefault(other, None)
        return replace(self, **own)

    def everywhere(self, name: str) -> Iterator[tuple[str, Any]]:
        """The flags that set `name`, for all workers or for a role, with the values that are given."""
        values = {name: getattr(self, name)}
        values |= {f"{role}_{name}": self.roles.of(role).get(name) for role in ("prefill", "decode")}
        return ((flag_name(setting), value) for setting, value in values.items() if value is not None)

    def flag_for(self, name: str, *, prefill: bool) -> str:
        """The flag that sets `name` for a role: its own if that is given, else the one for all workers."""
        role = "prefill" if prefill else "decode"
        return flag_name(f"{role}_{name}" if name in self.roles.of(role) else name)

    def ranks(self, *, prefill: bool) -> int:
        return self.for_role(prefill=prefill).tensor_parallel_size

    @property
    def num_ranks(self) -> int:
        """Ranks of all workers: the number of processes, and on cuda of GPUs."""
        prefill, decode = self.ranks(prefill=True), self.ranks(prefill=False)
        return self.num_prefill_workers * prefill + self.decode_workers * decode + self.encode_workers
