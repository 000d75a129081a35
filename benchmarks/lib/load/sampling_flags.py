"""Sampling flags shared by all benchmarks, for requests over HTTP and for an engine."""

from __future__ import annotations

import argparse
from typing import Final

from engine.core.sampling_params import SamplingParams

_OFF: Final = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}


def sampling_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    group.add_argument("--temperature", type=float, default=0.0, help="default: 0, greedy")
    group.add_argument("--top-p", type=float, default=_OFF["top_p"])
    group.add_argument("--top-k", type=int, default=_OFF["top_k"], help="default: 0, off")
    group.add_argument("--min-p", type=float, default=_OFF["min_p"])


def body_of(options: argparse.Namespace) -> dict[str, float]:
    """Fields of a request's body. Default values are omitted, since not every server supports all fields."""
    asked = {name: getattr(options, name) for name in _OFF}
    return {
        "temperature": options.temperature,
        **{name: value for name, value in asked.items() if value != _OFF[name]},
    }


def sampling_of(options: argparse.Namespace, max_tokens: int, seed: int) -> SamplingParams:
    """What an engine is asked for, answered to full length."""
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        seed=seed,
        ignore_eos=True,
    )
