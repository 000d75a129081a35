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

_MEMORY_S: Final = 60.0
"""Covers a client's retries. Short, since a request may be listed because of another in its batch."""
_MOST: Final = 256


class PoisonRequests:
    """Remembered by the keys of the prompt (see `common.origin`) and sampling parameters without the seed.

    `find` is O(1) while none is remembered.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.on_added: Callable[[bytes, str, float], object] = lambda _key, _id, _seconds: None
        """Called with fingerprint, sequence id and seconds to remember, for the other routers."""
        self._known: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        """Sequence id and expiry by fingerprint, in the order in which they became known."""

    def add(self, sequence_id: str, keys: Sequence[int], sampling: sampling_pb2.SamplingParams) -> None:
        key = _fingerprint(keys, sampling)
        self._known.pop(key, None)
        self.learn(key, sequence_id, _MEMORY_S)
        self.on_added(key, sequence_id, _MEMORY_S)

    def learn(self, key: bytes, sequence_id: str, seconds: float) -> None:
        """Remember a fingerprint of another router for that long, unless it is known."""
        self._known.setdefault(key, (sequence_id, self._clock() + seconds))
        while len(self._known) > _MOST:
            self._known.popitem(last=False)

    def find(self, keys: Sequence[int], sampling: sampling_pb2.SamplingParams) -> str | None:
        """Id of a remembered sequence with the same keys and parameters.

        O(prompt), and O(remembered), while any is remembered.
        """
        now = self._clock()
        for key in [key for key, (_, expiry) in self._known.items() if expiry <= now]:
            del self._known[key]
        if not self._known:
            return None
        known = self._known.get(_fingerprint(keys, sampling))
        return None if known is None else known[0]


def _fingerprint(keys: Sequence[int], sampling: sampling_pb2.SamplingParams) -> bytes:
    seedless = sampling_pb2.SamplingParams()
    seedless.CopyFrom(sampling)
    seedless.ClearField("seed")
    digest = hashlib.blake2b(array("q", keys).tobytes(), digest_size=16)
    digest.update(seedless.SerializeToString(deterministic=True))
    return digest.digest()
