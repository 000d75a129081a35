"""Loads by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simulator.lengths import LogNormal, Uniform
from simulator.traffic import Arrival, bursts, chats, day, merged, poisson

_TABLE: Final = (LogNormal(2048, 0.8, 16_384), Uniform(128, 512))
_SUMMARY: Final = (LogNormal(4096, 0.7, 16_384), Uniform(32, 128))
_STORY: Final = (LogNormal(256, 0.8, 2048), Uniform(512, 1024))
_CHAT: Final = (LogNormal(512, 0.8, 4096), LogNormal(256, 0.7, 1024))


def _mixed(rate: float, seconds: float, seed: int) -> list[Arrival]:
    return merged(
        poisson(rate / 2, seconds, *_SUMMARY, seed=2 * seed),
        poisson(rate / 2, seconds, *_STORY, seed=2 * seed + 1),
    )


LOADS: Final[dict[str, Callable[[float, float, int], list[Arrival]]]] = {
    "table": lambda rate, seconds, seed: poisson(rate, seconds, *_TABLE, seed=seed),
    "long-in": lambda rate, seconds, seed: poisson(rate, seconds, *_SUMMARY, seed=seed),
    "long-out": lambda rate, seconds, seed: poisson(rate, seconds, *_STORY, seed=seed),
    "both": _mixed,
    "shifting": lambda rate, seconds, seed: day(rate, seconds, (_SUMMARY, _TABLE, _STORY), seed),
    "bursts": lambda rate, seconds, seed: bursts(rate, seconds, *_TABLE, seed=seed),
    "chats": lambda rate, seconds, seed: chats(rate, seconds, LogNormal(128, 0.8, 2048), _CHAT[1], seed),
}
"""Loads by name: (requests a second, seconds, seed) -> arrivals."""
