"""Flags of SGLang, vLLM, TensorRT-LLM, Dynamo and roseinfer, with their equivalents in Baton.

Flags that only have another name are aliases in the declaration of the setting (`router.config.option`).
A flag is renamed only if it means the same. For others, `unavailable_flags.yaml` has the flag of `router` to
use, or the reason why there is none. Sources: SGLang's server_args.py, vLLM's arg_utils.py and cli_args.py,
Dynamo's dynamo.frontend, dynamo.vllm and dynamo.sglang.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import yaml

from router.config.table import SETTINGS


@dataclass(frozen=True, slots=True)
class UnavailableFlag:
    """Baton has no equivalent."""

    reason: str


@dataclass(frozen=True, slots=True)
class Renamed:
    """A flag with a value, under another name."""

    flag: str
    values: Mapping[str, str | UnavailableFlag] = field(default_factory=dict)
    """Values with another name; others are passed on."""


@dataclass(frozen=True, slots=True)
class Switch:
    """A flag without a value, or with true or false: settings of `router`, each as FLAG=VALUE."""

    on: tuple[str, ...] = ()
    off: tuple[str, ...] | UnavailableFlag = ()
    includes: tuple[str, ...] = ()
    """Settings that may be given as well as `on`, which means them too."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A flag whose value is a JSON object."""

    fields: Mapping[str, Renamed]


Translation: TypeAlias = Renamed | Switch | Fields | UnavailableFlag

_ALWAYS: Final = Switch()
"""The flag enables something that is always enabled in Baton."""
_NO_GRAPHS: Final = Switch(on=("--cuda-graph-max-bs=0", "--cuda-graph-max-tokens=0"))
_CHUNKED: Final = Switch(on=("--disable-chunked-prefill=false",), off=("--disable-chunked-prefill=true",))
_NOT_CHUNKED: Final = Switch(on=("--disable-chunked-prefill=true",))
_CACHING: Final = Switch(on=("--disable-radix-cache=false",), off=("--disable-radix-cache=true",))
_NO_CACHING: Final = Switch(on=("--disable-radix-cache=true",))
_OVERLAP: Final = UnavailableFlag(
    "on GPUs each step is planned while the one before it runs, on CPUs after it; this cannot be changed"
)

_QUANTIZATIONS: Final = {
    **{
        method: UnavailableFlag("the method is read from the checkpoint's config.json; leave it out")
        for method in (
            *("awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "modelopt", "modelopt_fp4"),
            *("mxfp4", "gguf", "w8a8_int8", "w8a8_fp8", "bitsandbytes", "fbgemm_fp8", "quark", "auto-round"),
        )
    },
    **{
        method: UnavailableFlag("use --quantization fp8, or a checkpoint in AWQ, GPTQ or compressed-tensors")
        for method in ("torchao", "experts_int8")
    },
}
_RENAMED: Final[dict[str, Translation]] = {
    "--dtype": Renamed("--dtype", {"half": "float16", "float": "float32"}),
    "--kv-cache-dtype": Renamed("--kv-cache-dtype", {"fp8_e4m3": "fp8"}),
    "--max-model-len": Renamed("--max-model-len", {"auto": "", "-1": ""}),
    **dict.fromkeys(("--quantization", "-q"), Renamed("--quantization", _QUANTIZATIONS)),
    "--tool-call-parser": Renamed(
        "--tool-call-parser",
        {
            **dict.fromkeys(("llama3", "llama4_json"), "llama3-json"),
            **dict.fromkeys(("qwen", "qwen25", "ernie45", "granite4"), "hermes"),
            **dict.fromkeys(("qwen3_coder", "qwen3_xml", "qwen3_5"), "qwen3-coder"),
            **dict.fromkeys(("glm", "glm47", "poolside_v1"), "glm45"),
            "deepseekv3": "deepseek-v3",
            "deepseekv31": "deepseek-v31",
            "hunyuan_a13b": "hunyuan",
            "hy_v3": "hunyuan3",
            "cohere_command": "cohere",
            "phi4_mini_json": "phi4-mini",
            **dict.fromkeys(("openai", "gpt-oss"), "harmony"),
        },
    ),
    "--reasoning-parser": Renamed(
        "--reasoning-parser",
        {
            **dict.fromkeys(("qwen3", "glm45", "kimi", "kimi_k2", "minimax_m2", "olmo3"), "think"),
            "hunyuan_a13b": "hunyuan",
            "cohere_command": "cohere",
            **dict.fromkeys(("openai_gptoss", "gpt-oss"), "harmony"),
        },
    ),
    "--chat-template-content-format": Renamed(
        "",
        {
            **dict.fromkeys(("auto", "string"), ""),
            "openai": UnavailableFlag("templates get the content of a message as text; leave it out"),
        },
    ),
    "--model-impl": Renamed("--model-impl", {"vllm": "baton", "sglang": "baton"}),
    "--load-format": Renamed("--load-format", {"safetensors": "auto", "gguf": "auto", "hf": "auto"}),
    "--generation-config": Renamed(
        "--generation-config",
        {"vllm": "none", "": UnavailableFlag("edit generation_config.json in the folder of the model")},
    ),
    "--logprobs-mode": Renamed(
        "--logprobs-mode",
        {
            "raw_logprobs": "raw",
            "processed_logprobs": "processed",
            **dict.fromkeys(
                ("raw_logits", "processed_logits"),
                UnavailableFlag("answers have log-probabilities, not logits; use raw or processed"),
            ),
        },
    ),
    "--sampling-defaults": Renamed("--generation-config", {"model": "auto", "openai": "none"}),
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
            "total_tokens": UnavailableFlag("workers are chosen by requests; use --routing least-loaded"),
        },
    ),
    "--router-mode": Renamed(
        "--routing",
        {
            "random": UnavailableFlag(
                "use --routing round-robin, or power-of-two for the better of two random"
            ),
            "kv": "prefix-aware",
        },
    ),
    "--disaggregation-transfer-backend": Renamed(
        "--kv-transport",
        {"mooncake": UnavailableFlag("there is no Mooncake here; use --kv-transport nixl or ucxx")},
    ),
    "--disaggregation-mode": Renamed(
        "--mode",
        {
            "null": "mixed",
            "agg": "mixed",
            **dict.fromkeys(
                ("prefill", "decode"),
                UnavailableFlag(
                    "one router starts both kinds of workers; use --mode disagg --prefill-workers N"
                    " --decode-workers N"
                ),
            ),
        },
    ),
    "--distributed-executor-backend": Renamed(
        "",
        {"ray": "", "mp": UnavailableFlag("workers are Ray actors, also on one machine; leave it out")},
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
                    "eagle": UnavailableFlag(
                        "use an EAGLE-3 head: --speculative model --speculative-model HEAD"
                    ),
                },
            ),
            "model": Renamed("--speculative-model"),
            "num_speculative_tokens": Renamed("--speculative-num-draft-tokens"),
        }
    ),
    "--disable-cuda-graph": _NO_GRAPHS,
    "--enforce-eager": _NO_GRAPHS,
    "--cuda-graph": Switch(off=_NO_GRAPHS.on),
    "--paged-attn": Switch(off=UnavailableFlag("KV is always in pages; use --page-size for their size")),
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
    "--enable-request-id-headers": _ALWAYS,
    "--enable-prompt-tokens-details": _ALWAYS,
    "--enable-piecewise-cuda-graph": _ALWAYS,
    "--skip-server-warmup": UnavailableFlag("workers warm up before they are ready; it cannot be left out"),
}


def _unavailable() -> dict[str, Translation]:
    table = Path(__file__).with_name("unavailable_flags.yaml")
    rows: list[dict[str, str]] = yaml.safe_load(table.read_text())
    return {flag: UnavailableFlag(row["reason"]) for row in rows for flag in row["flags"].split()}


TRANSLATIONS: Final[Mapping[str, Translation]] = {
    **{alias: Renamed(own.flag) for own in SETTINGS.values() for alias in own.option.aliases},
    **_RENAMED,
    **_unavailable(),
}
