"""Flags of SGLang, vLLM, TensorRT-LLM, Dynamo and roseinfer, with their equivalents in Baton.

Flags that only have another name are aliases in the declaration of the setting (`router.config.option`).
A flag is renamed only if it means the same. For others, the reason names the flag of `router` to use, or says
why there is none. Sources: SGLang's server_args.py, vLLM's arg_utils.py and cli_args.py, Dynamo's
dynamo.frontend, dynamo.vllm and dynamo.sglang.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from router.config.table import SETTINGS


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Baton has no equivalent."""

    reason: str


@dataclass(frozen=True, slots=True)
class Renamed:
    """A flag with a value, under another name."""

    flag: str
    values: Mapping[str, str | Unavailable] = field(default_factory=dict)
    """Values with another name; others are passed on."""


@dataclass(frozen=True, slots=True)
class Switch:
    """A flag without a value, or with true or false: settings of `router`, each as FLAG=VALUE."""

    on: tuple[str, ...] = ()
    off: tuple[str, ...] | Unavailable = ()
    includes: tuple[str, ...] = ()
    """Settings that may be given as well as `on`, which means them too."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A flag whose value is a JSON object."""

    fields: Mapping[str, Renamed]


Translation: TypeAlias = Renamed | Switch | Fields | Unavailable

_ALWAYS: Final = Switch()
"""The flag enables something that is always enabled in Baton."""
_NO_GRAPHS: Final = Switch(on=("--cuda-graph-max-bs=0", "--cuda-graph-max-tokens=0"))
_CHUNKED: Final = Switch(on=("--disable-chunked-prefill=false",), off=("--disable-chunked-prefill=true",))
_NOT_CHUNKED: Final = Switch(on=("--disable-chunked-prefill=true",))
_CACHING: Final = Switch(on=("--disable-radix-cache=false",), off=("--disable-radix-cache=true",))
_NO_CACHING: Final = Switch(on=("--disable-radix-cache=true",))
_OVERLAP: Final = Unavailable(
    "on GPUs each step is planned while the one before it runs, on CPUs after it; this cannot be changed"
)

_RENAMED: Final[dict[str, Translation]] = {
    "--dtype": Renamed("--dtype", {"half": "float16", "float": "float32"}),
    "--kv-cache-dtype": Renamed("--kv-cache-dtype", {"fp8_e4m3": "fp8"}),
    "--load-format": Renamed("--load-format", {"safetensors": "auto", "gguf": "auto", "hf": "auto"}),
    "--schedule-low-priority-values-first": Switch(on=("--low-priority-values-first=true",)),
    "--enable-priority-scheduling": Switch(
        on=("--schedule-policy=priority",), includes=("--schedule-policy=fcfs",)
    ),
    "--enable-mixed-chunk": Switch(on=("--batching=mixed",), off=("--batching=prefill-first",)),
    "--no-enable-mixed-chunk": Switch(on=("--batching=prefill-first",)),
    "--enable-chunked-prefill": _CHUNKED,
    "--no-enable-chunked-prefill": _NOT_CHUNKED,
    "--chunked-prefill": _CHUNKED,
    "--no-chunked-prefill": _NOT_CHUNKED,
    "--load-balance-method": Renamed(
        "--routing",
        {
            "round_robin": "round-robin",
            "shortest_queue": "least-loaded",
            "total_requests": "least-loaded",
            "total_tokens": Unavailable("workers are chosen by requests; use --routing least-loaded"),
        },
    ),
    "--router-mode": Renamed(
        "--routing",
        {
            "random": Unavailable("use --routing round-robin, or power-of-two for the better of two random"),
            "kv": "prefix-aware",
        },
    ),
    "--disaggregation-transfer-backend": Renamed(
        "--kv-transport",
        {"mooncake": Unavailable("there is no Mooncake here; use --kv-transport nixl or ucxx")},
    ),
    "--disaggregation-mode": Renamed(
        "--mode",
        {
            "null": "mixed",
            "agg": "mixed",
            **dict.fromkeys(
                ("prefill", "decode"),
                Unavailable(
                    "one router starts both kinds of workers; use --mode disagg --prefill-workers N"
                    " --decode-workers N"
                ),
            ),
        },
    ),
    "--distributed-executor-backend": Renamed(
        "",
        {"ray": "", "mp": Unavailable("workers are Ray actors, also on one machine; leave it out")},
    ),
    "--speculative-algorithm": Renamed(
        "--speculative",
        {
            **dict.fromkeys(("NEXTN", "EAGLE"), "mtp"),
            **dict.fromkeys(("EAGLE3", "STANDALONE"), "model"),
            "NGRAM": "ngram",
        },
    ),
    "--speculative-draft-model-path": Renamed("--speculative-model"),
    "--num-speculative-tokens": Renamed("--speculative-num-draft-tokens"),
    "--speculative-config": Fields(
        {
            "method": Renamed(
                "--speculative",
                {
                    **dict.fromkeys(("deepseek_mtp", "glm4_moe_mtp", "qwen3_next_mtp", "qwen3_5_mtp"), "mtp"),
                    **dict.fromkeys(("eagle3", "draft_model"), "model"),
                    "eagle": Unavailable("use an EAGLE-3 head: --speculative model --speculative-model HEAD"),
                },
            ),
            "model": Renamed("--speculative-model"),
            "num_speculative_tokens": Renamed("--speculative-num-draft-tokens"),
        }
    ),
    "--disable-cuda-graph": _NO_GRAPHS,
    "--enforce-eager": _NO_GRAPHS,
    "--cuda-graph": Switch(off=_NO_GRAPHS.on),
    "--paged-attn": Switch(off=Unavailable("KV is always in pages; use --page-size for their size")),
    "--enable-prefix-caching": _CACHING,
    "--no-enable-prefix-caching": _NO_CACHING,
    "--prefix-cache": _CACHING,
    "--no-prefix-cache": _NO_CACHING,
    "--enable-overlap-schedule": Switch(off=_OVERLAP),
    "--overlap-schedule": Switch(off=_OVERLAP),
    "--async-scheduling": Switch(off=_OVERLAP),
    "--enable-metrics": _ALWAYS,
    "--enable-metrics-for-all-schedulers": _ALWAYS,
    "--collect-tokens-histogram": _ALWAYS,
    "--abort-on-priority-when-disabled": _ALWAYS,
    "--enable-auto-tool-choice": _ALWAYS,
    "--enable-reasoning": _ALWAYS,
    "--incremental-streaming-output": _ALWAYS,
    "--enable-cache-report": _ALWAYS,
    "--enable-prompt-tokens-details": _ALWAYS,
    "--enable-piecewise-cuda-graph": _ALWAYS,
    "--skip-server-warmup": Unavailable("workers warm up before they are ready; it cannot be left out"),
}

_ROLES: Final = "one router starts both; use --mode disagg --prefill-workers N --decode-workers N"
_NODES: Final = "Ray places workers on nodes; start Ray on each (deploy/start_ray) and use --ray-address auto"
_ENGINE: Final = "the engine has one loop, whose steps hold prefill and decode; it cannot be changed"
_NO_LORA: Final = "there are no LoRA adapters here; merge the adapter into the checkpoint"
_NO_SPEC: Final = "use --speculative and --speculative-num-draft-tokens"
_NO_MOE: Final = "ranks share the experts of a model: --tensor-parallel-size N --expert-parallel-size N"
_NO_MM: Final = "there are no multimodal models here"
_NO_QUANT: Final = "weights and KV may be quantized: --quantization, --kv-cache-dtype"
_NO_OFFLOAD: Final = "KV and weights stay in device memory; use --kv-memory-fraction or more ranks"
_PER_REQUEST: Final = "every request has its own seed (the `seed` field)"
_BACKEND: Final = "the kernels follow from the device and the model; see `router doctor`"
_TEMPLATE: Final = "the checkpoint's own tokenizer and chat template are used"
_ALWAYS_SO: Final = "not configurable; remove the flag"
_LOGS: Final = "use --log-level and --log-format"
_TRACES: Final = "ask for `timings` in a request, or use `router explain REQUEST`"
_BUS: Final = "the router finds its workers through Ray; there is no etcd, NATS or namespace to name"


def _unavailable(reason: str, *flags: str) -> dict[str, Translation]:
    return dict.fromkeys(flags, Unavailable(reason))


_UNAVAILABLE: Final[dict[str, Translation]] = {
    **_unavailable(
        "keys are read from a file, so that `ps` does not show them; use --api-key-file FILE",
        "--api-key",
        "--admin-api-key",
    ),
    **_unavailable("use --cors-origins with a comma-separated list", "--allowed-origins"),
    **_unavailable(_ROLES, "--is-prefill-worker", "--is-decode-worker", "--disaggregation-strategy"),
    **_unavailable("use --mode disagg --kv-transport nixl", "--kv-transfer-config", "--connector"),
    **_unavailable(
        "workers find each other through the router; --worker-ports limits the ports they use",
        "--disaggregation-bootstrap-port",
    ),
    **_unavailable(
        "name the devices for UCX: --worker-env UCX_NET_DEVICES=mlx5_0:1", "--disaggregation-ib-device"
    ),
    **_unavailable(_NODES, "--nnodes", "--node-rank", "--dist-init-addr", "--master-addr", "--headless"),
    **_unavailable(_NODES, "--data-parallel-size-local", "--data-parallel-address", "--data-parallel-rank"),
    **_unavailable(
        "a model is split by tensor parallelism within a node; use --tensor-parallel-size",
        *("--pipeline-parallel-size", "--pp-size", "--pp", "-pp", "--disaggregation-prefill-pp"),
        *("--decode-context-parallel-size", "--prefill-context-parallel-size", "--attn-cp-size"),
        *("--attention-context-parallel-size", "--pp-max-micro-batch-size", "--pp-async-batch-depth"),
    ),
    **_unavailable(
        _NO_MOE,
        *("--enable-expert-parallel", "--enable-eplb"),
        *("--moe-a2a-backend", "--moe-runner-backend", "--enable-deepep-moe", "--enable-dp-attention"),
    ),
    **_unavailable(
        _NO_QUANT,
        *("--torchao-config", "--quantization-param-path"),
        *("--calculate-kv-scales", "--modelopt-quant", "--quantize-and-serve", "--enable-fp32-lm-head"),
    ),
    **_unavailable(
        _NO_SPEC,
        "--speculative-num-steps",
        "--speculative-eagle-topk",
    ),
    **_unavailable(
        _NO_LORA,
        *("--enable-lora", "--lora-modules", "--lora-paths", "--max-loras", "--max-lora-rank"),
        *("--max-loras-per-batch", "--max-cpu-loras", "--lora-dtype", "--fully-sharded-loras"),
    ),
    **_unavailable(
        _NO_MM,
        *("--limit-mm-per-prompt", "--enable-multimodal", "--mm-attention-backend"),
        "--disable-chunked-mm-input",
    ),
    **_unavailable(
        _NO_OFFLOAD,
        *("--swap-space", "--cpu-offload-gb", "--enable-hierarchical-cache", "--hicache-ratio"),
        *("--hicache-size", "--enable-lmcache", "--kv-offloading-size"),
    ),
    **_unavailable("size the pool by --kv-pool-tokens, in tokens", "--num-gpu-blocks-override"),
    **_unavailable("use --kv-memory-fraction, or --kv-pool-tokens", "--kv-cache-memory-bytes"),
    **_unavailable("it follows from --chunked-prefill-size", "--max-seq-len-to-capture"),
    **_unavailable(
        "graph sizes follow from --cuda-graph-max-bs and --cuda-graph-max-tokens",
        *("--cuda-graph-bs", "--cuda-graph-sizes", "--cudagraph-capture-sizes", "--compilation-config", "-O"),
        *("--disable-cuda-graph-padding", "--enable-torch-compile", "--torch-compile-max-bs"),
    ),
    **_unavailable(_PER_REQUEST, "--seed", "--random-seed"),
    **_unavailable(
        _BACKEND,
        *("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend"),
        *("--sampling-backend", "--disable-custom-all-reduce", "--enable-nccl-nvls", "--model-impl"),
    ),
    **_unavailable(
        _TEMPLATE,
        *("--tokenizer", "--tokenizer-path", "--tokenizer-mode", "--chat-template", "--trust-remote-code"),
        *(
            "--hf-config-path",
            "--config-format",
            "--override-generation-config",
            "--chat-template-content-format",
        ),
        *("--skip-tokenizer-init", "--hf-overrides", "--json-model-override-args", "--generation-config"),
    ),
    **_unavailable(
        "give the folder of a downloaded revision to --model",
        *("--revision", "--code-revision", "--tokenizer-revision", "--download-dir", "--ignore-patterns"),
    ),
    **_unavailable(
        _ALWAYS_SO,
        *("--sleep-on-idle", "--allow-auto-truncate", "--enable-request-id-headers", "--stream-output"),
        *("--disable-hybrid-kv-cache-manager", "--disable-hybrid-swa-memory", "--enable-p2p-check"),
        *("--disable-frontend-multiprocessing", "--tokenizer-worker-num", "--api-server-count"),
        *("--max-parallel-loading-workers", "--enable-memory-saver", "--enable-sleep-mode", "--warmups"),
    ),
    **_unavailable(
        "clients say it in their requests",
        "--sampling-defaults",
        "--preferred-sampling-params",
        "--response-role",
    ),
    **_unavailable(
        "pages of the least recently used prefixes are evicted first",
        *("--radix-eviction-policy", "--prefix-caching-hash-algo"),
    ),
    **_unavailable(
        "use --schedule-conservativeness, the factor of the forecast of output tokens",
        *("--num-reserved-decode-tokens", "--new-token-ratio", "--init-new-token-ratio"),
    ),
    **_unavailable("chunks are sized by --itl-target-ms", "--enable-dynamic-chunking"),
    **_unavailable(
        "chunks end where a page ends; use --page-size, a multiple of the alignment",
        "--truncation-align-size",
    ),
    **_unavailable(
        "prompts are computed as soon as a step has room",
        *("--enable-prefill-delayer", "--prefill-delayer-max-delay-passes"),
    ),
    **_unavailable("use --routing round-robin", "--prefill-round-robin-balance"),
    **_unavailable("requests without a priority have 0", "--default-priority-value"),
    **_unavailable("use --step-timeout", "--soft-watchdog-timeout"),
    **_unavailable("weights are compared between workers by digest", "--model-checksum"),
    **_unavailable(
        "structured output has one backend",
        "--grammar-backend",
        "--guided-decoding-backend",
        "--structured-outputs-config",
    ),
    **_unavailable(
        "buckets of histograms are fixed; see /metrics",
        *("--bucket-time-to-first-token", "--bucket-inter-token-latency", "--bucket-e2e-request-latency"),
        *("--prompt-tokens-buckets", "--generation-tokens-buckets", "--show-hidden-metrics-for-version"),
    ),
    **_unavailable(
        "metrics are served at /metrics",
        *("--enable-server-load-tracking", "--export-metrics-to-file", "--enable-mfu-metrics"),
    ),
    **_unavailable("Ray chooses the GPUs; see --accelerator", "--base-gpu-id", "--gpu-id-step"),
    **_unavailable("use --startup-timeout", "--dist-timeout"),
    **_unavailable("use --worker-ports", "--nccl-port", "--data-parallel-rpc-port"),
    **_unavailable("the gRPC API is always served; see --grpc-port", "--grpc-mode"),
    **_unavailable("put a proxy in front of the router", "--root-path", "--middleware", "--ssl-ca-certs"),
    **_unavailable("use --cors-origins", "--allow-credentials", "--allowed-methods", "--allowed-headers"),
    **_unavailable("the context is that of the checkpoint", "--rope-scaling", "--rope-theta"),
    **_unavailable(
        _OVERLAP.reason,
        *("--no-async-scheduling", "--disable-overlap-schedule", "--no-overlap-schedule"),
    ),
    **_unavailable(
        _ENGINE,
        *("--num-scheduler-steps", "--num-continuous-decode-steps", "--enable-two-batch-overlap"),
        *("--scheduler-delay-factor", "--enable-dbo"),
    ),
    **_unavailable(
        "tokens are sent when their step ends", "--stream-interval", "--multi-step-stream-outputs"
    ),
    **_unavailable("preempted requests are computed again", "--preemption-mode", "--num-lookahead-slots"),
    **_unavailable(
        "the number of prompts in a step follows from its tokens; use --max-prefill-tokens",
        "--prefill-max-requests",
    ),
    **_unavailable("the scheduler is one class; its flags are under `scheduling`", "--scheduler-cls"),
    **_unavailable(
        _LOGS,
        *("--uvicorn-log-level", "--log-level-http", "--disable-log-requests", "--enable-log-requests"),
        *("--disable-log-stats", "--log-requests", "--log-requests-level", "--disable-uvicorn-access-log"),
        *("--no-enable-log-requests", "--show-time-cost", "--max-log-len", "--log-requests-format"),
        *("--log-requests-target", "--crash-dump-folder"),
    ),
    **_unavailable(
        _TRACES,
        *("--enable-trace", "--collect-detailed-traces", "--enable-request-time-stats-logging"),
    ),
    **_unavailable("use --max-logprobs for the largest number of alternatives", "--logprobs-mode"),
    **_unavailable("there are no embedding models here", "--is-embedding", "--task", "--runner"),
    **_unavailable("attempts are counted, the first one included: use --max-attempts", "--migration-limit"),
    **_unavailable(
        _BUS,
        *("--namespace", "--component", "--endpoint", "--etcd-endpoints", "--nats-server"),
        *("--discovery-backend", "--store-kv"),
    ),
    **_unavailable(
        "--mode adaptive weighs cached tokens by the time they save; there is no weight to set",
        *("--kv-overlap-score-weight", "--router-temperature", "--kv-events-config", "--no-kv-events"),
    ),
}

TRANSLATIONS: Final[Mapping[str, Translation]] = {
    **{alias: Renamed(own.flag) for own in SETTINGS.values() for alias in own.option.aliases},
    **_RENAMED,
    **_UNAVAILABLE,
}
