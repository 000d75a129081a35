"""What the `router` command was asked to do: every setting once, with its flag, its help and its default.

The command line, the YAML file and `--help` are all derived from the fields of `RouterConfig`, so a new
setting is one line here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import NoneType
from typing import Annotated, Any, Final, get_args, get_type_hints

from router.config.choices import Device, Dtype, LogLevel, Mode, NodePlacement, Routing, Transport

__all__ = [
    "SETTINGS",
    "Device",
    "Dtype",
    "LogLevel",
    "Mode",
    "NodePlacement",
    "RouterConfig",
    "Routing",
    "Setting",
    "Transport",
    "flag_name",
]


@dataclass(frozen=True, slots=True)
class Option:
    """How a setting is explained to the user."""

    group: str
    help: str
    metavar: str | None = None


_WHAT = "what to serve"
_WORKERS = "workers"
_DOORS = "front doors"
_SECURITY = "access and limits"
_MEMORY = "model and memory"
_BATCHING = "batching"
_HANDOFF = "handoff of KV (--mode disagg)"
_ROUTING = "routing and failover"
_PRESSURE = "backpressure (429, RESOURCE_EXHAUSTED)"
_OPERATION = "operation"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    model: Annotated[
        str, Option(_WHAT, "alias (smollm2), Hugging Face folder, .gguf file, or hub id", "MODEL")
    ] = ""
    served_model_name: Annotated[
        str | None, Option(_WHAT, "the name clients ask for (default: the model's own)", "NAME")
    ] = None
    mode: Annotated[
        Mode, Option(_WHAT, "mixed: workers prefill and decode; disagg: separate workers for each")
    ] = Mode.MIXED

    prefill_workers: Annotated[
        int | None, Option(_WORKERS, "prefill workers; only with --mode disagg (default there: 1)", "N")
    ] = None
    decode_workers: Annotated[
        int, Option(_WORKERS, "decode workers; in mixed mode they prefill too", "N")
    ] = 1
    tensor_parallel_size: Annotated[
        int,
        Option(_WORKERS, "ranks that share a worker's model: processes of one node, on cuda a GPU each", "N"),
    ] = 1
    prefill_tensor_parallel_size: Annotated[
        int | None,
        Option(_WORKERS, "of prefill workers, with --mode disagg (default: --tensor-parallel-size)", "N"),
    ] = None
    decode_tensor_parallel_size: Annotated[
        int | None, Option(_WORKERS, "of decode workers (default: --tensor-parallel-size)", "N")
    ] = None
    ray_address: Annotated[
        str | None,
        Option(
            _WORKERS, "a running Ray cluster, as host:port or 'auto' (default: start a local Ray)", "ADDRESS"
        ),
    ] = None
    worker_cpus: Annotated[
        int | None,
        Option(
            _WORKERS,
            "CPU cores for each rank of a worker (default: on --device cpu a fair share of the machine)",
            "N",
        ),
    ] = None
    worker_network: Annotated[
        str | None,
        Option(
            _WORKERS,
            "workers listen on their address in this network only (default: 127.0.0.1; on a Ray cluster, the"
            " address of the worker's node)",
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
        float, Option(_WORKERS, "seconds within which every worker must be ready", "SECONDS")
    ] = 900.0

    host: Annotated[str, Option(_DOORS, "address to listen on; 0.0.0.0 for every interface", "HOST")] = (
        "127.0.0.1"
    )
    http_port: Annotated[int, Option(_DOORS, "OpenAI-compatible HTTP; 0 picks a free port", "PORT")] = 30000
    grpc_port: Annotated[int, Option(_DOORS, "gRPC service baton.v1.Router; 0 picks a free port", "PORT")] = (
        50051
    )

    http_keep_alive: Annotated[
        float,
        Option(
            _DOORS,
            "seconds an idle HTTP connection is kept open; set it above the idle timeout of a proxy in front",
            "SECONDS",
        ),
    ] = 120.0

    api_key_file: Annotated[
        str | None,
        Option(_SECURITY, "API keys, one a line: only who brings one is let in (default: everybody)", "FILE"),
    ] = None
    metrics_key_file: Annotated[
        str | None,
        Option(
            _SECURITY,
            "keys for /metrics and /sd/workers, one a line (default: with --api-key-file both are closed,"
            " else open)",
            "FILE",
        ),
    ] = None
    max_requests_per_key: Annotated[
        int | None,
        Option(
            _SECURITY,
            "completions (prompts times n) that one API key may have running (default: no limit)",
            "N",
        ),
    ] = None
    cors_origins: Annotated[
        str | None,
        Option(
            _SECURITY,
            "web pages whose scripts may call the HTTP API, such as https://chat.example.com, with commas"
            " between; * for any (default: none)",
            "ORIGINS",
        ),
    ] = None
    tls_cert: Annotated[
        str | None,
        Option(_SECURITY, "certificate chain of both front doors, PEM (default: no encryption)", "FILE"),
    ] = None
    tls_key: Annotated[str | None, Option(_SECURITY, "its key, PEM, without a passphrase", "FILE")] = None
    max_body_bytes: Annotated[int, Option(_SECURITY, "largest request", "BYTES")] = 4 << 20
    max_prompt_tokens: Annotated[
        int | None, Option(_SECURITY, "longest prompt (default: what the context holds)", "TOKENS")
    ] = None
    max_completions: Annotated[
        int, Option(_SECURITY, "most answers to one request: its prompts times n", "N")
    ] = 256
    max_logprobs: Annotated[int, Option(_SECURITY, "most logprobs of alternatives, for each token", "N")] = 20

    device: Annotated[Device, Option(_MEMORY, "auto: cuda where Ray sees GPUs, else cpu")] = Device.AUTO
    dtype: Annotated[
        Dtype,
        Option(_MEMORY, "of weights and KV; auto: float32 on cpu, the checkpoint's 16-bit type on cuda"),
    ] = Dtype.AUTO
    load_format: Annotated[
        str, Option(_MEMORY, "auto, or dummy for random weights (benchmarks)", "FORMAT")
    ] = "auto"
    max_model_len: Annotated[
        int | None,
        Option(
            _MEMORY, "longest prompt + output, in tokens (default: what model and KV pool allow)", "TOKENS"
        ),
    ] = None
    page_size: Annotated[int, Option(_MEMORY, "tokens a page of the KV pool holds", "TOKENS")] = 16
    kv_pool_tokens: Annotated[
        int | None,
        Option(_MEMORY, "size of a worker's KV pool (default: see --kv-memory-fraction)", "TOKENS"),
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
    disable_radix_cache: Annotated[bool, Option(_MEMORY, "do not reuse the KV of shared prefixes")] = False

    chunked_prefill_size: Annotated[
        int | None,
        Option(
            _BATCHING,
            "most tokens a step computes; longer prompts are cut; -1: no chunking (default: by device)",
            "TOKENS",
        ),
    ] = None
    itl_target_ms: Annotated[
        float | None,
        Option(
            _BATCHING,
            "beside running answers, prompts are cut so that a step takes about so long;"
            " 0: not at all (default: 20 on cuda, 0 on cpu)",
            "MS",
        ),
    ] = None
    max_running_requests: Annotated[int, Option(_BATCHING, "requests a worker computes at a time", "N")] = 256
    cuda_graph_max_bs: Annotated[
        int | None,
        Option(
            _BATCHING,
            "largest batch of decodes that is captured as a CUDA graph; 0: none (default: by GPU memory)",
            "N",
        ),
    ] = None
    cuda_graph_max_tokens: Annotated[
        int | None,
        Option(
            _BATCHING,
            "largest step with prompts that is captured, but for its attention; 0: none"
            " (default: by GPU memory)",
            "TOKENS",
        ),
    ] = None
    max_queued_requests: Annotated[
        int, Option(_BATCHING, "requests a worker holds waiting before it refuses more", "N")
    ] = 4096

    kv_transport: Annotated[
        Transport,
        Option(_HANDOFF, "nixl: one-sided UCX; ucxx: two-sided; loopback: within one process, for tests"),
    ] = Transport.NIXL
    handoff_timeout: Annotated[
        float,
        Option(
            _HANDOFF,
            "seconds without progress (a free page, a page that arrives) before a prompt is computed again",
            "SECONDS",
        ),
    ] = 60.0

    routing: Annotated[Routing, Option(_ROUTING, "how a worker is picked for a request")] = (
        Routing.LEAST_LOADED
    )
    max_attempts: Annotated[int, Option(_ROUTING, "tries for a request whose worker fails", "N")] = 3
    failover_timeout: Annotated[
        float, Option(_ROUTING, "seconds such a request waits for a worker to come back", "SECONDS")
    ] = 60.0

    worker_timeout: Annotated[
        float,
        Option(
            _ROUTING,
            "seconds of silence after which a worker is late and gets no new request; its heartbeat is 0.2",
            "SECONDS",
        ),
    ] = 1.0
    worker_grace: Annotated[
        float,
        Option(
            _ROUTING,
            "seconds after --worker-timeout in which a late worker may answer a probe and keep its streams;"
            " then it is lost",
            "SECONDS",
        ),
    ] = 3.0
    step_timeout: Annotated[
        float,
        Option(_ROUTING, "seconds at one step after which an engine hangs, and is started anew", "SECONDS"),
    ] = 300.0
    router_timeout: Annotated[
        float,
        Option(
            _ROUTING,
            "seconds without a connection to this router after which a worker ends itself",
            "SECONDS",
        ),
    ] = 60.0
    canary_interval: Annotated[
        float, Option(_ROUTING, "seconds unused, after which a worker is asked for two tokens", "SECONDS")
    ] = 15.0
    canary_timeout: Annotated[
        float, Option(_ROUTING, "seconds that it has to answer; twice in vain, and it is not used", "SECONDS")
    ] = 30.0

    max_queued_tokens: Annotated[
        int,
        Option(
            _PRESSURE, "prompt tokens waiting for their first token, beyond which more are refused", "TOKENS"
        ),
    ] = 4_000_000
    max_queue_wait: Annotated[
        float,
        Option(
            _PRESSURE,
            "refuse a request that would wait so long, by the latest rate; or longer than its own timeout",
            "SECONDS",
        ),
    ] = 300.0

    drain_timeout: Annotated[
        float, Option(_OPERATION, "seconds that running requests get to finish after SIGTERM", "SECONDS")
    ] = 30.0
    admin_port: Annotated[
        int | None,
        Option(
            _OPERATION,
            "on loopback, for `router workers`, `drain` and `restart`; 0 picks a free one"
            " (default: --http-port + 1)",
            "PORT",
        ),
    ] = None
    log_level: Annotated[LogLevel, Option(_OPERATION, "how much to log; debug shows workers' output too")] = (
        LogLevel.INFO
    )

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

    def ranks_setting(self, *, prefill: bool) -> str:
        """Name of the setting that says how many ranks a worker that prefills, or one that decodes, has."""
        own = "prefill_tensor_parallel_size" if prefill else "decode_tensor_parallel_size"
        return "tensor_parallel_size" if getattr(self, own) is None else own

    def ranks(self, *, prefill: bool) -> int:
        count: int = getattr(self, self.ranks_setting(prefill=prefill))
        return count

    @property
    def num_ranks(self) -> int:
        """Of all workers together: as many processes, and on cuda as many GPUs."""
        prefill, decode = self.ranks(prefill=True), self.ranks(prefill=False)
        return self.num_prefill_workers * prefill + self.decode_workers * decode


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of RouterConfig, as flags and files see it."""

    name: str
    type: type
    """The plain type: int for `int | None`."""
    default: Any
    option: Option

    @property
    def flag(self) -> str:
        return flag_name(self.name)


def flag_name(field_name: str) -> str:
    """`--page-size` for `page_size`: how messages name a setting."""
    return "--" + field_name.replace("_", "-")


def _settings() -> dict[str, Setting]:
    hints = get_type_hints(RouterConfig, include_extras=True)
    settings = {}
    for field in fields(RouterConfig):
        hint, option = get_args(hints[field.name])
        (plain,) = [kind for kind in get_args(hint) if kind is not NoneType] or [hint]
        settings[field.name] = Setting(field.name, plain, field.default, option)
    return settings


SETTINGS: Final = _settings()
