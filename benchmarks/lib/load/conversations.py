"""Sessions of several turns, drawn from distributions or read from a trace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.lib.load.workload import words_of
from simulator.lengths import Lengths, parse_lengths

_TRACE_BLOCK: Final = 512
"""Tokens of a hash id in Mooncake's traces."""


@dataclass(frozen=True, slots=True)
class Turn:
    gap_s: float
    """Between the end of the turn before, or the start of the session, and this one: the user or a tool."""
    text: str
    """What the user or a tool adds to the conversation."""
    max_tokens: int


@dataclass(slots=True)
class Session:
    """A conversation. Each turn's prompt is all that was said before, answers included, and its text."""

    start_s: float
    opening: str
    """System prompt, which sessions may share."""
    turns: list[Turn]
    branches: dict[int, list[Turn]] = field(default_factory=dict)
    """Turns of a sub-agent, which begins with the conversation up to the end of the turn of this number."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """What sessions are drawn from. Lengths are in words, of about one token each."""

    turns: Lengths
    gap_ms: Lengths
    opening: Lengths
    openings: int
    """Distinct system prompts."""
    first: Lengths
    later: Lengths
    tool: Lengths
    tool_share: float
    """Share of the turns that are the output of a tool, with the length of `tool`."""
    output: Lengths
    branch_share: float
    """Share of the turns from which a sub-agent branches."""

    @classmethod
    def read(cls, path: Path) -> Distribution:
        """A JSON object with the fields of this class. Raises OSError, ValueError, TypeError."""
        return cls.of(json.loads(path.read_text()))

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Distribution:
        """Lengths are given as `parse_lengths` reads them. Raises ValueError, TypeError."""
        fields: dict[str, Any] = {
            name: parse_lengths(value) if isinstance(value, str) else value for name, value in content.items()
        }
        return cls(**fields)


def draw_sessions(distribution: Distribution, count: int, rate: float, seed: int) -> list[Session]:
    """`count` sessions that start as a Poisson process of `rate` a second; the same for the same seed."""
    rng = np.random.default_rng(seed)
    openings = [words_of(rng, _one(distribution.opening, rng)) for _ in range(distribution.openings)]
    starts = np.cumsum(rng.exponential(1 / rate, count)) if np.isfinite(rate) else np.zeros(count)
    sessions = []
    for start in starts:
        turns = [_turn(distribution, rng, first=k == 0) for k in range(_one(distribution.turns, rng))]
        session = Session(float(start), openings[rng.integers(len(openings))], turns)
        for number in range(len(turns) - 1):
            if rng.random() < distribution.branch_share:
                session.branches[number] = [_turn(distribution, rng, first=False) for _ in range(2)]
        sessions.append(session)
    return sessions


def read_trace(path: Path, seed: int = 0) -> list[Session]:
    """A trace in Mooncake's format: a JSON object a line, with timestamp (ms), input_length, output_length
    and hash_ids, which name the prompt's blocks of 512 tokens.

    Every request is a session of one turn; equal hash ids give equal text. Raises OSError, ValueError and
    KeyError.
    """
    return [_traced(json.loads(line), seed) for line in path.read_text().splitlines() if line.strip()]


def _traced(request: Mapping[str, Any], seed: int) -> Session:
    left, blocks = int(request["input_length"]), []
    for number in request["hash_ids"]:
        length = min(left, _TRACE_BLOCK)
        blocks.append(words_of(np.random.default_rng([seed, number]), _TRACE_BLOCK).split()[:length])
        left -= length
    words = [word for block in blocks for word in block]
    text = " ".join(words[1:])
    turn = Turn(0.0, text, max(1, int(request["output_length"])))
    return Session(request["timestamp"] / 1e3, words[0] if words else "", [turn])


def _turn(distribution: Distribution, rng: np.random.Generator, *, first: bool) -> Turn:
    is_tool = not first and rng.random() < distribution.tool_share
    kind = distribution.tool if is_tool else distribution.first if first else distribution.later
    gap = 0.0 if first else _one(distribution.gap_ms, rng) / 1e3
    return Turn(gap, words_of(rng, _one(kind, rng)), _one(distribution.output, rng))


def _one(lengths: Lengths, rng: np.random.Generator) -> int:
    return int(next(iter(lengths.draw(rng, 1))))
