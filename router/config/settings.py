"""Settings of the `router` command: each stated once, with its flag, help text and default.

The command line, the YAML file and `--help` are all derived from the fields of `RouterConfig`, so a new
setting is one line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import NoneType
from typing import Annotated, Any, Final, get_args, get_type_hints

from router.config.choices import (
    Device,
    Dtype,
    LogFormat,
    LogLevel,
    MetricNames,
    Mode,
    NodePlacement,
    ReasoningParser,
    Routing,
    ToolCallParser,
    Transport,
)
from router.config.option import Option
from router.config.role_settings import RoleSettings
from router.config.scheduling import SchedulingSettings

__all__ = [
    "SETTINGS",
    "Device",
    "Dtype",
    "LogFormat",
    "LogLevel",
    "MetricNames",
    "Mode",
    "NodePlacement",
    "ReasoningParser",
    "RouterConfig",
    "Routing",
    "Setting",
    "ToolCallParser",
    "Transport",
    "configured",
    "flag_name",
]


_MODEL = "model and mode"
_WORKERS = "workers"
_APIS = "HTTP and gRPC APIs"
_SECURITY = "access and limits"
_MEMORY = "device and memory"
_BATCHING = "batching"
_HANDOFF = "KV handoff (--mode disagg and adaptive)"
_ROUTING = "routing and failover"
_PRESSURE = "backpressure (429, RESOURCE_EXHAUSTED)"
_OPERATION = "operation"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    model: Annotated[
        str,
        Option(
            _MODEL,
            "model to serve: an alias (smollm2), a Hugging Face folder, a .gguf file, or a hub id",
            "MODEL",
        ),
    ] = ""
    served_model_name: Annotated[
        str | None,
        Option(_MODEL, "model name in API requests and responses (default: the model's own)", "NAME"),
    ] = None
    mode: Annotated[
        Mode,
        Option(
            _MODEL,
            "mixed: every worker prefills and decodes; disagg: separate prefill and decode workers;"
            " adaptive: the router decides for each request, to meet --ttft-target-ms and --itl-target-ms",
        ),
    ] = Mode.MIXED

    prefill_workers: Annotated[
        int | None,
        Option(_WORKERS, "number of prefill workers; with --mode disagg or adaptive (default there: 1)", "N"),
    ] = None
    decode_workers: Annotated[
        int, Option(_WORKERS, "number of decode workers; in mixed mode they prefill too", "N")
    ] = 1
    tensor_parallel_size: Annotated[
        int,
        Option(
            _WORKERS, "tensor-parallel ranks of each worker: processes on one node, one GPU each on cuda", "N"
        ),
    ] = 1
    accelerator: Annotated[
        str | None,
        Option(_WORKERS, "Ray accelerator type of the workers' GPUs, such as H100 (default: any)", "TYPE"),
    ] = None
    ray_address: Annotated[
        str | None,
        Option(
            _WORKERS, "Ray cluster to join, as host:port or 'auto' (default: start a local one)", "ADDRESS"
        ),
    ] = None
    worker_cpus: Annotated[
        int | None,
        Option(
            _WORKERS,
            "CPU cores per rank (default: on --device cpu the machine's cores divided by the ranks)",
            "N",
        ),
    ] = None
    worker_network: Annotated[
        str | None,
        Option(
            _WORKERS,
            "network on which workers listen (default: 127.0.0.1; on a Ray cluster, the address of the"
            " worker's node)",
            "CIDR",
        ),
    ] = None
    worker_ports: Annotated[
        str | None,
        Option(
            _WORKERS,
            "ports that workers listen on: gRPC, metrics and lifelines in the lower half, UCX in the upper"
            " half (default: any free ones)",
            "LOW-HIGH",
        ),
    ] = None
    placement: Annotated[
        NodePlacement,
        Option(
            _WORKERS,
            "nodes of workers; pack: as few as possible, where KV travels fastest; spread: as many as"
            " possible; strict-spread: one each",
        ),
    ] = NodePlacement.PACK
    wait_for_nodes: Annotated[
        int | None,
        Option(
            _WORKERS,
            "with --ray-address: place workers when the cluster has this many nodes, the head included"
            " (default: as soon as there is room)",
            "N",
        ),
    ] = None
    worker_env: Annotated[
        str | None,
        Option(
            _WORKERS,
            "environment of workers, such as 'UCX_NET_DEVICES=mlx5_0:1 NCCL_DEBUG=INFO'; shell quoting",
            "'KEY=VALUE ...'",
        ),
    ] = None
    startup_timeout: Annotated[
        float, Option(_WORKERS, "give up when not all workers are ready after this time", "SECONDS")
    ] = 900.0

    tool_call_parser: Annotated[
        ToolCallParser,
        Option(_APIS, "format of the model's tool calls; auto: as its chat template has it"),
    ] = ToolCallParser.AUTO
    reasoning_parser: Annotated[
        ReasoningParser,
        Option(_APIS, "how reasoning is separated from the answer; auto: as the chat template has it"),
    ] = ReasoningParser.AUTO
    host: Annotated[str, Option(_APIS, "address to listen on; 0.0.0.0 for every interface", "HOST")] = (
        "127.0.0.1"
    )
    http_port: Annotated[
        int, Option(_APIS, "port of the OpenAI-compatible HTTP API; 0 picks a free one", "PORT")
    ] = 30000
    grpc_port: Annotated[
        int, Option(_APIS, "port of the gRPC API (baton.v1.Router); 0 picks a free one", "PORT")
    ] = 50051

    http_keep_alive: Annotated[
        float,
        Option(
            _APIS,
            "close HTTP connections idle for this long; set it above the idle timeout of a proxy in front",
            "SECONDS",
        ),
    ] = 120.0

    api_key_file: Annotated[
        str | None,
        Option(
            _SECURITY,
            "file of API keys, one per line; requests without a valid key are refused (default: no keys)",
            "FILE",
        ),
    ] = None
    metrics_key_file: Annotated[
        str | None,
        Option(
            _SECURITY,
            "file of keys for /metrics, /sd/workers and /status, one per line (default: closed with"
            " --api-key-file, else open)",
            "FILE",
        ),
    ] = None
    max_requests_per_key: Annotated[
        int | None,
        Option(
            _SECURITY,
            "concurrent completions (prompts × n) per API key (default: no limit)",
            "N",
        ),
    ] = None
    cors_origins: Annotated[
        str | None,
        Option(
            _SECURITY,
            "comma-separated origins allowed to call the HTTP API from a browser, such as"
            " https://chat.example.com; * allows any (default: none)",
            "ORIGINS",
        ),
    ] = None
    tls_cert: Annotated[
        str | None,
        Option(_SECURITY, "TLS certificate chain (PEM) of the HTTP and gRPC APIs (default: no TLS)", "FILE"),
    ] = None
    tls_key: Annotated[
        str | None, Option(_SECURITY, "private key (PEM, no passphrase) of --tls-cert", "FILE")
    ] = None
    max_body_bytes: Annotated[int, Option(_SECURITY, "largest request body", "BYTES")] = 4 << 20
    max_prompt_tokens: Annotated[
        int | None, Option(_SECURITY, "longest prompt (default: --max-model-len)", "TOKENS")
    ] = None
    max_completions: Annotated[
        int, Option(_SECURITY, "largest number of completions (prompts × n) per request", "N")
    ] = 256
    max_logprobs: Annotated[
        int, Option(_SECURITY, "largest number of alternatives per token in logprobs", "N")
    ] = 20

    device: Annotated[
        Device, Option(_MEMORY, "device of the workers; auto: cuda if Ray sees GPUs, else cpu")
    ] = Device.AUTO
    dtype: Annotated[
        Dtype,
        Option(
            _MEMORY,
            "dtype of weights and KV; auto: the checkpoint's 16-bit type on cuda; on cpu bfloat16 if measured"
            " to be faster, else float32",
        ),
    ] = Dtype.AUTO
    load_format: Annotated[
        str, Option(_MEMORY, "auto, or dummy for random weights (for benchmarks)", "FORMAT")
    ] = "auto"
    max_model_len: Annotated[
        int | None,
        Option(
            _MEMORY,
            "context length: prompt plus output (default: what the model and the KV pool allow)",
            "TOKENS",
        ),
    ] = None
    page_size: Annotated[int, Option(_MEMORY, "tokens per KV page", "TOKENS")] = 16
    kv_pool_tokens: Annotated[
        int | None,
        Option(_MEMORY, "KV pool size of each worker (default: see --kv-memory-fraction)", "TOKENS"),
    ] = None
    kv_memory_fraction: Annotated[
        float | None,
        Option(
            _MEMORY,
            "share of a worker's memory (the GPU's total; on CPUs what is free at the start) that weights,"
            " activations and KV pool may take together (default: 0.9 on GPUs; on CPUs a pool of 16384"
            " tokens, or of one context if that is longer)",
            "0..1",
        ),
    ] = None
    disable_radix_cache: Annotated[bool, Option(_MEMORY, "disable prefix caching")] = False

    chunked_prefill_size: Annotated[
        int | None,
        Option(
            _BATCHING,
            "token budget of a step; longer prompts are split into chunks; -1 disables chunking"
            " (default: by device)",
            "TOKENS",
        ),
    ] = None
    itl_target_ms: Annotated[
        float | None,
        Option(
            _BATCHING,
            "target step time while requests decode; prefill chunks are sized to meet it; 0 disables it"
            " (default: 20 on cuda, 0 on cpu)",
            "MS",
        ),
    ] = None
    max_running_requests: Annotated[
        int, Option(_BATCHING, "largest number of running requests per worker", "N")
    ] = 256
    cuda_graph_max_bs: Annotated[
        int | None,
        Option(
            _BATCHING,
            "largest decode batch captured as a CUDA graph; 0 disables them (default: by GPU memory)",
            "N",
        ),
    ] = None
    cuda_graph_max_tokens: Annotated[
        int | None,
        Option(
            _BATCHING,
            "largest step with prefill captured as piecewise CUDA graphs, attention excluded; 0 disables them"
            " (default: by GPU memory)",
            "TOKENS",
        ),
    ] = None
    max_queued_requests: Annotated[
        int, Option(_BATCHING, "largest number of waiting requests per worker; more are refused", "N")
    ] = 4096

    kv_transport: Annotated[
        Transport,
        Option(
            _HANDOFF, "nixl: one-sided writes over UCX; ucxx: two-sided UCX; loopback: one process, for tests"
        ),
    ] = Transport.NIXL
    handoff_timeout: Annotated[
        float,
        Option(
            _HANDOFF,
            "fail a handoff that makes no progress for this long; the prompt is computed again",
            "SECONDS",
        ),
    ] = 60.0

    routing: Annotated[Routing, Option(_ROUTING, "worker selection policy")] = Routing.PREFIX_AWARE
    ttft_target_ms: Annotated[
        float,
        Option(
            _ROUTING,
            "--mode adaptive places requests so that most get their first token within this time",
            "MS",
        ),
    ] = 500.0
    max_attempts: Annotated[
        int, Option(_ROUTING, "largest number of attempts at a request whose worker fails", "N")
    ] = 3
    failover_timeout: Annotated[
        float, Option(_ROUTING, "how long such a request waits for a ready worker", "SECONDS")
    ] = 60.0

    worker_timeout: Annotated[
        float,
        Option(
            _ROUTING,
            "silence after which a worker is late: it is probed and gets no new requests (heartbeat: 0.2 s)",
            "SECONDS",
        ),
    ] = 1.0
    worker_grace: Annotated[
        float,
        Option(
            _ROUTING,
            "time after --worker-timeout in which a late worker can answer the probe and keep its streams;"
            " after it the worker is lost",
            "SECONDS",
        ),
    ] = 3.0
    step_timeout: Annotated[
        float,
        Option(_ROUTING, "restart a worker whose engine step takes longer than this", "SECONDS"),
    ] = 300.0
    router_timeout: Annotated[
        float,
        Option(
            _ROUTING,
            "seconds without a connection to this router after which a worker ends itself",
            "SECONDS",
        ),
    ] = 60.0
    probe_interval: Annotated[
        float,
        Option(
            _ROUTING,
            "probe a worker that has been unused for this long with a request of two tokens",
            "SECONDS",
        ),
    ] = 15.0
    probe_timeout: Annotated[
        float,
        Option(
            _ROUTING,
            "probe timeout; after two consecutive timeouts the worker is taken out of rotation",
            "SECONDS",
        ),
    ] = 30.0

    max_queued_tokens: Annotated[
        int,
        Option(
            _PRESSURE,
            "largest number of prompt tokens waiting for their first token; more are refused",
            "TOKENS",
        ),
    ] = 4_000_000
    max_queue_wait: Annotated[
        float,
        Option(
            _PRESSURE,
            "reject (429) when the estimated queue time exceeds this or the request's own timeout",
            "SECONDS",
        ),
    ] = 300.0

    drain_timeout: Annotated[
        float, Option(_OPERATION, "how long running requests may take to finish after SIGTERM", "SECONDS")
    ] = 30.0
    admin_port: Annotated[
        int | None,
        Option(
            _OPERATION,
            "loopback port for `router workers`, `explain`, `drain` and `restart`; 0 picks a free one"
            " (default: --http-port + 1)",
            "PORT",
        ),
    ] = None
    otlp_traces_endpoint: Annotated[
        str | None,
        Option(
            _OPERATION,
            "OpenTelemetry collector to send traces to, OTLP over HTTP, such as http://127.0.0.1:4318"
            " (default: no traces); $OTEL_EXPORTER_OTLP_HEADERS is sent along",
            "URL",
        ),
    ] = None
    metrics_names: Annotated[
        MetricNames,
        Option(
            _OPERATION,
            "names of Prometheus metrics; vllm: vLLM's names where it has the same metric",
        ),
    ] = MetricNames.BATON
    explain_requests: Annotated[
        int, Option(_OPERATION, "number of finished requests that `router explain` knows", "N")
    ] = 1000
    log_level: Annotated[LogLevel, Option(_OPERATION, "log level; debug includes the workers' output")] = (
        LogLevel.INFO
    )
    log_format: Annotated[
        LogFormat,
        Option(
            _OPERATION,
            "text, or one JSON object a line, for router and workers; json adds a line for every request at"
            " its end",
        ),
    ] = LogFormat.TEXT
    log_workers: Annotated[
        bool, Option(_OPERATION, "show the workers' log lines in the router's output, as they are")
    ] = False
    decode_log_interval: Annotated[
        int,
        Option(
            _OPERATION,
            "decode steps between two `Decode batch` lines of a worker's log; 0: no batch lines at all",
            "STEPS",
        ),
    ] = 40

    scheduling: SchedulingSettings = field(default_factory=SchedulingSettings)
    roles: RoleSettings = field(default_factory=RoleSettings)

    @property
    def effective_admin_port(self) -> int:
        if self.admin_port is None:
            return self.http_port + 1 if self.http_port else 0
        return self.admin_port

    @property
    def num_prefill_workers(self) -> int:
        if self.mode is Mode.MIXED:
            return 0
        return 1 if self.prefill_workers is None else self.prefill_workers

    @property
    def hands_over(self) -> bool:
        """Whether KV moves between workers."""
        return self.mode is not Mode.MIXED

    def for_role(self, *, prefill: bool) -> RouterConfig:
        """With the settings of prefill workers, or of decode workers, in place of those for all."""
        own = self.roles.of("prefill" if prefill else "decode")
        for one, other in (
            ("kv_pool_tokens", "kv_memory_fraction"),
            ("kv_memory_fraction", "kv_pool_tokens"),
        ):
            if one in own:
                own.setdefault(other, None)
        return replace(self, **own)

    def flag_for(self, name: str, *, prefill: bool) -> str:
        """The flag that sets `name` for a role: its own if that is given, else the one for all workers."""
        role = "prefill" if prefill else "decode"
        return flag_name(f"{role}_{name}" if name in self.roles.of(role) else name)

    def ranks(self, *, prefill: bool) -> int:
        return self.for_role(prefill=prefill).tensor_parallel_size

    @property
    def num_ranks(self) -> int:
        """Of all workers together: as many processes, and on cuda as many GPUs."""
        prefill, decode = self.ranks(prefill=True), self.ranks(prefill=False)
        return self.num_prefill_workers * prefill + self.decode_workers * decode


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of RouterConfig, or of a group of settings in it, as flags and files see it."""

    name: str
    type: type
    """The plain type: int for `int | None`."""
    default: Any
    option: Option
    group: str | None = None
    """The field of RouterConfig that holds the setting's group; None: the setting itself is one."""

    @property
    def flag(self) -> str:
        return flag_name(self.name)

    def of(self, config: RouterConfig) -> Any:
        return getattr(getattr(config, self.group) if self.group else config, self.name)


def flag_name(field_name: str) -> str:
    """`--page-size` for `page_size`: how messages name a setting."""
    return "--" + field_name.replace("_", "-")


def configured(values: Mapping[str, Any]) -> RouterConfig:
    """A configuration of settings by their names; those of groups are put into their groups."""
    own = {name: value for name, value in values.items() if SETTINGS[name].group is None}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if (group := SETTINGS[name].group) is not None:
            groups.setdefault(group, {})[name] = value
    return RouterConfig(**own, **{group: _GROUPS[group](**given) for group, given in groups.items()})


def _settings_of(owner: type, group: str | None = None) -> dict[str, Setting]:
    hints = get_type_hints(owner, include_extras=True)
    settings: dict[str, Setting] = {}
    for own in fields(owner):
        if own.name in _GROUPS:
            settings |= _settings_of(_GROUPS[own.name], own.name)
            continue
        hint, option = get_args(hints[own.name])
        (plain,) = [kind for kind in get_args(hint) if kind is not NoneType] or [hint]
        settings[own.name] = Setting(own.name, plain, own.default, option, group)
    return settings


_GROUPS: Final[Mapping[str, type]] = {"scheduling": SchedulingSettings, "roles": RoleSettings}
SETTINGS: Final = _settings_of(RouterConfig)
