"""Remembers requests that crashed workers, and refuses identical ones for a minute.

Many clients retry after a 500; each retry would crash workers again.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from rpc.baton.v1 import sampling_pb2

__all__ = ["PoisonRequests"]

_MEMORY_S: Final = 60.0
"""Covers a client's retries. Short, since a request may be listed because of another in its batch."""
_MOST: Final = 256


class PoisonRequests:
    """Keyed by prompt and sampling parameters without the seed. `find` is O(1) while none is remembered."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        """Sequence id and expiry by fingerprint, oldest first."""

    def add(self, sequence_id: str, prompt: Sequence[int], sampling: sampling_pb2.SamplingParams) -> None:
        key = _fingerprint(prompt, sampling)
        self._known[key] = (sequence_id, self._clock() + _MEMORY_S)
        self._known.move_to_end(key)
        while len(self._known) > _MOST:
            self._known.popitem(last=False)

    def find(self, prompt: Sequence[int], sampling: sampling_pb2.SamplingParams) -> str | None:
        """Id of a remembered sequence with the same prompt and parameters.

        O(prompt) while any is remembered.
        """
        now = self._clock()
        while self._known and next(iter(self._known.values()))[1] <= now:
            self._known.popitem(last=False)
        if not self._known:
            return None
        known = self._known.get(_fingerprint(prompt, sampling))
        return None if known is None else known[0]


def _fingerprint(prompt: Sequence[int], sampling: sampling_pb2.SamplingParams) -> bytes:
    seedless = sampling_pb2.SamplingParams()
    seedless.CopyFrom(sampling)
    seedless.ClearField("seed")
    digest = hashlib.blake2b(array("q", prompt).tobytes(), digest_size=16)
    digest.update(seedless.SerializeToString(deterministic=True))
    return digest.digest()
