"""Settings of the service: its APIs, access to them, the Ray cluster, failover, operation."""

from __future__ import annotations

from dataclasses import dataclass

from common.metric_export import MetricNames
from router.config.choices import (
    GenerationConfig,
    LogFormat,
    LogLevel,
    LogprobsMode,
    NodePlacement,
    ReasoningParserChoice,
    ToolCallParser,
    UpdateMode,
)
from router.config.option import Heading
from router.request_limits import LOGPROBS_LIMIT

_access = Heading("access and limits")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    api_key_file: str | None = _access(
        None,
        "file of API keys, one per line; requests without a valid key are refused (default: no keys)",
        "FILE",
    )
    metrics_key_file: str | None = _access(
        None,
        "file of keys for /metrics, /sd/workers and /status, one per line (default: closed with"
        " --api-key-file, else open)",
        "FILE",
    )
    admin_key_file: str | None = _access(
        None,
        "file of keys for routes that change what is served, such as /update_weights, one per line"
        " (default: closed)",
        "FILE",
    )
    rl: bool = _access(
        False,
        "open those routes without a key of --admin-key-file, as trainers call them; anyone who reaches the"
        " port, or has a key of --api-key-file, can then replace the weights",
    )
    update_mode: UpdateMode = _access(
        UpdateMode.ROLLING,
        "new weights: rolling updates one worker after another while the others serve; together pauses all",
    )
    max_requests_per_key: int | None = _access(
        None, "concurrent completions (prompts × n) per API key (default: no limit)", "N", least=1
    )
    separate_tenants: bool = _access(
        False,
        "share cached prefixes only among requests of one API key, so that response times reveal nothing"
        " about the prompts of other keys; needs --api-key-file",
    )
    cors_origins: str | None = _access(
        None,
        "comma-separated origins allowed to call the HTTP API from a browser, such as"
        " https://chat.example.com; * allows any (default: none)",
        "ORIGINS",
    )
    tls_cert: str | None = _access(
        None,
        "TLS certificate chain (PEM) of the HTTP and gRPC APIs (default: no TLS)",
        "FILE",
        aliases=("--ssl-certfile", "--tls-cert-path"),
    )
    tls_key: str | None = _access(
        None,
        "private key (PEM, no passphrase) of --tls-cert",
        "FILE",
        aliases=("--ssl-keyfile", "--tls-key-path"),
    )
    max_body_bytes: int = _access(4 << 20, "largest request body", "BYTES", least=1)
    max_prompt_tokens: int | None = _access(
        None, "longest prompt (default: --max-model-len)", "TOKENS", least=1
    )
    max_completions: int = _access(
        256, "largest number of completions (prompts × n) per request", "N", least=1
    )
    max_logprobs: int = _access(
        20, "largest number of alternatives per token in logprobs", "N", least=0, most=LOGPROBS_LIMIT
    )
    logprobs_mode: LogprobsMode = _access(
        LogprobsMode.RAW,
        "logprobs of an answer: raw, the model's own; processed, those of the distribution that is sampled"
        " from, after penalties, temperature and truncation (on cpu)",
    )


_cluster = Heading("workers")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    ray_address: str | None = _cluster(
        None, "Ray cluster to join, as host:port or 'auto' (default: start a local one)", "ADDRESS"
    )
    cluster_name: str = _cluster(
        "baton",
        "with --ray-address: name of the cluster of workers in Ray; they outlive the router, and routers"
        " of one name share them",
        "NAME",
    )
    worker_cpus: int | None = _cluster(
        None,
        "CPU cores per rank, and on --device cpu its threads at most (default: there the machine's cores"
        " divided by the ranks)",
        "N",
        least=1,
    )
    worker_network: str | None = _cluster(
        None,
        "network on which workers listen (default: 127.0.0.1; on a Ray cluster, the address of the"
        " worker's node)",
        "CIDR",
    )
    worker_ports: str | None = _cluster(
        None,
        "ports that workers listen on: gRPC, metrics and lifelines in the lower half, UCX in the upper"
        " half (default: any free ones)",
        "LOW-HIGH",
    )
    placement: NodePlacement = _cluster(
        NodePlacement.PACK,
        "nodes of workers; pack: as few as possible, for the fastest KV transfer; spread: as many as"
        " possible; strict-spread: one worker per node",
    )
    wait_for_nodes: int | None = _cluster(
        None,
        "with --ray-address: place workers when the cluster has this many nodes, the head included"
        " (default: as soon as there is room)",
        "N",
        least=1,
    )
    autoscale: str | None = _cluster(
        None,
        "bounds between which the number of workers follows the load, such as 'decode=1:4 prefill=1:2'"
        " (default: fixed; `router scale` changes it). With 0 as the least, a request starts the first"
        " worker and waits --failover-timeout for it",
        "'ROLE=LEAST:MOST ...'",
    )
    autoscale_cooldown: float = _cluster(
        300.0, "--autoscale: end a worker when it was superfluous for this time", "SECONDS", above=0
    )
    worker_env: str | None = _cluster(
        None,
        "environment of workers, such as 'UCX_NET_DEVICES=mlx5_0:1 NCCL_DEBUG=INFO'; shell quoting",
        "'KEY=VALUE ...'",
    )
    startup_timeout: float = _cluster(
        900.0, "give up when not all workers are ready after this time", "SECONDS", above=0
    )


_failover = Heading("routing and failover")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverSettings:
    max_attempts: int = _failover(
        3, "largest number of attempts at a request whose worker fails, until it makes progress", "N", least=1
    )
    failover_timeout: float = _failover(
        60.0, "how long a request waits while no worker is ready", "SECONDS", above=0
    )

    worker_timeout: float = _failover(
        1.0,
        "silence after which a worker is late: it is probed and gets no new requests (heartbeat: 0.2 s)",
        "SECONDS",
        above=0,
    )
    worker_grace: float = _failover(
        3.0,
        "time after --worker-timeout in which a late worker can answer the probe and keep its streams;"
        " after it the worker is lost",
        "SECONDS",
        least=0,
    )
    step_timeout: float = _failover(
        300.0,
        "restart a worker whose engine step takes longer than this",
        "SECONDS",
        above=0,
        aliases=("--watchdog-timeout",),
    )
    router_timeout: float = _failover(
        60.0,
        "seconds without any router, or Ray, after which a worker ends itself; the router kills a worker"
        " that has been silent for as long on a node that Ray reaches",
        "SECONDS",
        above=0,
    )
    probe_interval: float = _failover(
        15.0,
        "probe a worker that has been unused for this long with a request of two tokens",
        "SECONDS",
        above=0,
    )
    probe_timeout: float = _failover(
        30.0,
        "probe timeout; after two consecutive timeouts the worker is taken out of rotation",
        "SECONDS",
        above=0,
    )


_frontend = Heading("HTTP and gRPC APIs")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendSettings:
    tool_call_parser: ToolCallParser = _frontend(
        ToolCallParser.AUTO, "format of the model's tool calls; auto: detected from its chat template"
    )
    reasoning_parser: ReasoningParserChoice = _frontend(
        ReasoningParserChoice.AUTO,
        "how reasoning is separated from the answer; auto: detected from the chat template",
    )
    chat_template: str | None = _frontend(
        None,
        "Jinja template of conversations, in place of the model's own; formats of calls and reasoning are"
        " detected from it",
        "FILE",
    )
    generation_config: GenerationConfig = _frontend(
        GenerationConfig.AUTO,
        "defaults of sampling parameters that a request leaves out; auto: those of the model's"
        " generation_config.json; none: OpenAI's",
    )
    host: str = _frontend("127.0.0.1", "address to listen on; 0.0.0.0 for every interface", "HOST")
    http_port: int = _frontend(
        30000, "port of the OpenAI-compatible HTTP API; 0 picks a free one", "PORT", aliases=("--port",)
    )
    grpc_port: int = _frontend(50051, "port of the gRPC API (baton.v1.Router); 0 picks a free one", "PORT")

    frontends: int = _frontend(
        1, "router processes that share the ports and the workers; each can use one core", "N", least=1
    )
    http_keep_alive: float = _frontend(
        120.0,
        "close HTTP connections idle for this long; set it above the idle timeout of a proxy in front",
        "SECONDS",
        above=0,
    )
    http_write_timeout: float = _frontend(
        120.0,
        "reset HTTP connections whose client takes no byte of what is sent to it for this long",
        "SECONDS",
        above=0,
    )


_operation = Heading("operation")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSettings:
    drain_timeout: float = _operation(
        30.0, "how long running requests may take to finish after SIGTERM", "SECONDS", least=0
    )
    admin_port: int | None = _operation(
        None,
        "loopback port for `router workers`, `explain`, `drain` and `restart`; 0 picks a free one"
        " (default: --http-port + 1)",
        "PORT",
    )
    otlp_traces_endpoint: str | None = _operation(
        None,
        "OpenTelemetry collector to send traces to, OTLP over HTTP, such as http://127.0.0.1:4318"
        " (default: no traces); $OTEL_EXPORTER_OTLP_HEADERS is sent along",
        "URL",
    )
    metrics_names: MetricNames = _operation(
        MetricNames.BATON, "names of Prometheus metrics; vllm: vLLM's names where it has the same metric"
    )
    kv_events: str | None = _operation(
        None,
        "publish which prefixes are cached, in vLLM's format over ZeroMQ, such as tcp://*:5557, for"
        " gateways that route by them (default: no events)",
        "ENDPOINT",
    )
    kv_events_replay: str | None = _operation(
        None, "where subscribers of --kv-events ask for batches that they missed", "ENDPOINT"
    )
    kv_events_topic: str | None = _operation(
        None, "topic of --kv-events (default: kv@HOST@MODEL, with this machine's name)", "TOPIC"
    )
    explain_requests: int = _operation(
        1000, "number of finished requests kept for `router explain`", "N", least=0
    )
    record_requests: str | None = _operation(
        None,
        "append every finished request to this file, for `router replay`: token ids of prompt and answer, and"
        " sampling parameters (default: nothing is recorded)",
        "FILE",
    )
    record_requests_mb: float = _operation(
        1024.0,
        "size of the file of --record-requests; a full one is renamed to FILE.1, in place of the one before",
        "MB",
        least=1,
    )
    identify_weights: bool = _operation(
        False,
        "compute the digest of the weights at the start also without KV transfer, which needs it anyway",
    )
    log_level: LogLevel = _operation(LogLevel.INFO, "log level; debug includes the workers' output")
    log_format: LogFormat = _operation(
        LogFormat.TEXT,
        "text, or one JSON object per line, for router and workers; json adds the timings of every request",
    )
    log_workers: bool = _operation(False, "show the workers' log lines in the router's output, as they are")
    decode_log_interval: int = _operation(
        40,
        "decode steps between two `Decode batch` lines of a worker's log; 0: no batch lines at all",
        "STEPS",
        least=0,
    )
