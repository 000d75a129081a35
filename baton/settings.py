"""Keyword arguments of `LLM`: the router's settings of engine and scheduler, by any name of its flags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from router.config.flags.aliases import as_given
from router.config.flags.foreign_flags import TRANSLATIONS
from router.config.flags.validation import problems_of
from router.config.flags.values import did_you_mean, named_settings
from router.config.option import flag_name
from router.config.settings import RouterConfig
from router.config.table import SETTINGS, configured

_GROUPS: Final = ("device and memory", "batching", "scheduling")
ARGUMENTS: Final = frozenset(
    {name for name, setting in SETTINGS.items() if setting.option.group in _GROUPS}
    | {
        "model",
        "tensor_parallel_size",
        "generation_config",
        "enable_lora",
        "max_loras",
        "max_lora_rank",
        "max_cpu_loras",
        "chat_template",
        "runner",
        "convert",
        "pooler_config",
        "hf_overrides",
        "logprobs_mode",
    }
)
"""Settings that mean something in one process, by their own names."""

_UNLIMITED: Final = 1 << 30


def config_of(arguments: Mapping[str, Any]) -> RouterConfig:
    """None is the default of any argument; a mapping is given as JSON.

    Raises TypeError for a name that LLM does not have, ValueError for values that are wrong.
    """
    given = {
        name: json.dumps(value) if isinstance(value, Mapping) else value
        for name, value in arguments.items()
        if value is not None
    }
    found = named_settings(given)
    for name in found.unknown:
        known = {*ARGUMENTS, *(_argument(flag) for flag in TRANSLATIONS)}
        raise TypeError(f"LLM() has no argument {name}{did_you_mean(name, known, '; see docs/flags.md')}")
    for name in found.settings.keys() - ARGUMENTS:
        flag = flag_name(name)
        argument = _argument(found.names.get(flag, flag))
        raise TypeError(
            f"LLM() has no argument {argument}: {flag} is a setting of the router, which serves requests"
        )
    config = configured({"max_queued_requests": _UNLIMITED, **found.settings})
    problems = [*found.problems, *problems_of(config)]
    if config.num_ranks > 1:
        problems.append("LLM runs in one process: tensor parallelism takes the router")
    if problems:
        names = {flag: _argument(name) for flag, name in found.names.items()}
        raise ValueError("; ".join(as_given(problem, names) for problem in problems))
    return config


def _argument(flag: str) -> str:
    """`max_num_seqs` for `--max-num-seqs`."""
    return flag.lstrip("-").replace("-", "_")
