"""Arrival times and shared prefixes of requests: generators, and Mooncake's trace format."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from router.placement import Targets
from simulator.lengths import Lengths

_BLOCK: Final = 512
"""Tokens per hash id in Mooncake's format."""
_TURNS: Final = 5.0
"""Turns of a chat, on average."""
_SYSTEM_TOKENS: Final = 1024
_SYSTEMS: Final = 4
"""Different system prompts."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. Its tokens matter only through `blocks`, the prefixes that it shares with others."""

    at: float
    prompt_tokens: int
    max_tokens: int
    blocks: tuple[int, ...] = ()
    """Names of its blocks of `_BLOCK` tokens: prompts with a common beginning of names share those tokens."""

    def prompt(self) -> Sequence[int]:
        if not self.blocks:
            return array("q", bytes(8 * self.prompt_tokens))  # zeros
        tokens = [block * _BLOCK + i for block in self.blocks for i in range(_BLOCK)]
        own = (1 << 48) + int(self.at * 1e6)  # unique
        tokens += [own] * (self.prompt_tokens - len(tokens))
        return tokens[: self.prompt_tokens]


def poisson(rate: float, seconds: float, inputs: Lengths, outputs: Lengths, seed: int) -> list[Arrival]:
    """A Poisson process of `rate` requests a second; nothing is shared."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate, round(rate * seconds)))
    return _arrivals(rng, times, inputs, outputs)


def bursts(
    rate: float,
    seconds: float,
    inputs: Lengths,
    outputs: Lengths,
    seed: int,
    *,
    factor: float = 3.0,
    every_s: float = 20.0,
    share: float = 0.2,
) -> list[Arrival]:
    """`rate` on average; for `share` of every `every_s` seconds it is `factor` times that."""
    if factor * share >= 1:
        raise ValueError(f"bursts of {factor:g} x the rate for {share:g} of the time leave nothing between")
    calm = (1 - factor * share) / (1 - share)

    def rate_at(t: float) -> float:
        return rate * (factor if t % every_s < share * every_s else calm)

    rng = np.random.default_rng(seed)
    return _arrivals(rng, _thinned(rng, rate_at, factor * rate, seconds), inputs, outputs)


def day(rate: float, seconds: float, mixes: Sequence[tuple[Lengths, Lengths]], seed: int) -> list[Arrival]:
    """The mix shifts gradually from the first of `mixes` (inputs, outputs) to the last, at one rate."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate, round(rate * seconds)))
    drawn = [_arrivals(rng, times, inputs, outputs) for inputs, outputs in mixes]
    arrivals = []
    for index, at in enumerate(times):
        place = min(at / seconds, 1.0) * (len(mixes) - 1)
        mix = math.floor(place) + (rng.random() < place % 1)
        arrivals.append(drawn[min(int(mix), len(mixes) - 1)][index])
    return arrivals


def chats(
    rate: float,
    seconds: float,
    questions: Lengths,
    answers: Lengths,
    seed: int,
    *,
    think_s: float = 10.0,
) -> list[Arrival]:
    """Multi-turn chats, `rate` requests a second in the long run.

    Each chat begins with one of a few shared system prompts and has several turns; every turn's prompt holds
    all before it. Whole blocks of the history are shared with the next turn.
    """
    rng = np.random.default_rng(seed)
    begin, arrivals, names = 0.0, list[Arrival](), iter(range(_SYSTEMS * _SYSTEM_TOKENS, 1 << 60))
    while (begin := begin + float(rng.exponential(_TURNS / rate))) < seconds:
        system = int(rng.integers(_SYSTEMS))
        blocks = [system * _SYSTEM_TOKENS + i for i in range(_SYSTEM_TOKENS // _BLOCK)]
        history, at = _SYSTEM_TOKENS, begin
        for _ in range(int(rng.geometric(1 / _TURNS))):
            question, answer = questions.draw(rng, 1)[0], answers.draw(rng, 1)[0]
            history += question
            while len(blocks) < history // _BLOCK:
                blocks.append(next(names))
            if at < seconds:
                arrivals.append(Arrival(at, history, answer, tuple(blocks)))
            history += answer
            at += float(rng.exponential(think_s)) + 0.01 * answer
    return sorted(arrivals, key=lambda arrival: arrival.at)


def mooncake(lines: Iterable[str] | Path, *, speed: float = 1.0, most: int | None = None) -> list[Arrival]:
    """Requests of a trace in Mooncake's format: JSON lines with `timestamp` (ms), `input_length`,
    `output_length` and `hash_ids`, one for each block of 512 tokens.

    `speed` 2 replays it twice as fast. Raises ValueError with the line number for an invalid line.
    """
    if isinstance(lines, Path):
        with lines.open() as file:
            return mooncake(list(file), speed=speed, most=most)
    return sorted(_read(lines, speed, most), key=lambda arrival: arrival.at)


def merged(*traffic: Sequence[Arrival]) -> list[Arrival]:
    return sorted((arrival for part in traffic for arrival in part), key=lambda arrival: arrival.at)


def last_deadline(arrivals: Sequence[Arrival], targets: Targets) -> float:
    """After it, no token can make an answer good that is not good yet: where a simulation may end."""
    return max((a.at + targets.ttft_s + targets.tpot_s * a.max_tokens for a in arrivals), default=0.0)


def _read(lines: Iterable[str], speed: float, most: int | None) -> Iterator[Arrival]:
    for number, line in enumerate(line for line in lines if line.strip()):
        if most is not None and number >= most:
            return
        try:
            entry = json.loads(line)
            arrival = Arrival(
                at=float(entry["timestamp"]) / 1e3 / speed,
                prompt_tokens=int(entry["input_length"]),
                max_tokens=int(entry["output_length"]),
                blocks=tuple(int(block) for block in entry.get("hash_ids", ())),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"line {number + 1} is not of Mooncake's trace format: {error!r}") from error
        if arrival.prompt_tokens < 1 or arrival.max_tokens < 1:
            raise ValueError(f"line {number + 1}: lengths start at 1")
        # The last block may be partial: its tokens are not shared.
        yield replace(arrival, blocks=arrival.blocks[: arrival.prompt_tokens // _BLOCK])


def _arrivals(
    rng: np.random.Generator, times: Sequence[float] | np.ndarray, inputs: Lengths, outputs: Lengths
) -> list[Arrival]:
    count = len(times)
    lengths = zip(times, inputs.draw(rng, count), outputs.draw(rng, count), strict=True)
    return [Arrival(float(at), prompt, answer) for at, prompt, answer in lengths]


def _thinned(
    rng: np.random.Generator, rate_at: Callable[[float], float], highest: float, seconds: float
) -> list[float]:
    times, t = list[float](), 0.0
    while (t := t + float(rng.exponential(1 / highest))) < seconds:
        if rng.random() < rate_at(t) / highest:
            times.append(t)
    return times
