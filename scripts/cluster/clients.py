"""Clients of a cluster: what each streamed request received, and when."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import httpx
import orjson

_TIMEOUT_S: Final = 200.0
"""Between two reads: longer than any pause that a cluster is allowed."""


class Question(Protocol):
    @property
    def prompt(self) -> str | Sequence[int]: ...

    @property
    def max_tokens(self) -> int: ...


@dataclass
class Stream:
    """A streamed answer. Another thread may read it while it grows."""

    text: str = ""
    stamps: list[float] = field(default_factory=list)
    """Arrival times of the chunks, by `time.monotonic`."""
    error: str = ""
    is_over: bool = False

    @property
    def longest_pause(self) -> float:
        """Seconds between two chunks."""
        return max((b - a for a, b in zip(self.stamps, self.stamps[1:], strict=False)), default=0.0)


def ask(url: str, question: Question, stream: Stream) -> Stream:
    """Streams the greedy answer, of exactly `max_tokens` tokens, into `stream`, and returns it."""
    try:
        _read(url, question, stream)
    except httpx.HTTPError as error:
        stream.error = f"{type(error).__name__}: {error}"
    stream.is_over = True
    return stream


def _read(url: str, question: Question, stream: Stream) -> None:
    body = {
        "prompt": question.prompt,
        "max_tokens": question.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=_TIMEOUT_S) as response:
        if response.status_code != 200:
            stream.error = f"{response.status_code} {response.read()[:500]!r}"
            return
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = orjson.loads(line[6:])
            if "error" in chunk:
                stream.error = str(chunk["error"])
                return
            stream.stamps.append(time.monotonic())
            stream.text += chunk["choices"][0]["text"]
