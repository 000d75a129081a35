"""The encode workers: which of them encodes the images of a sequence."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

from router.dispatch.encodes.remote_encode import RemoteEncode
from router.dispatch.sequence import SequenceState
from router.dispatch.workers.liveness import CircuitState, Liveness
from router.dispatch.workers.registry import Registry
from router.dispatch.workers.session import WorkerSession
from router.placement.images import EncodeRates
from rpc.baton.v1 import worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_ENCODE

_FIRST_GUESS_S: Final = 1e-4
"""Per token of an image, before any is measured."""
_MOST_KNOWN: Final = 4096
"""Images of which it is remembered where they were encoded."""


class Choice(Protocol):
    def version_for(self, sequence: SequenceState) -> str:
        """See `Selector.version_for`."""

    def encodes_elsewhere(self, sequence: SequenceState, seconds: float, token_s: float) -> bool:
        """See `Selector.encodes_elsewhere`."""


class EncodePool:
    def __init__(self, registry: Registry, choice: Choice) -> None:
        self._registry = registry
        self._choice = choice
        self._rates = EncodeRates()
        self._running: set[RemoteEncode] = set()
        self._watched: set[str] = set()
        """Keys of the sessions whose encodes are measured."""
        self._known: OrderedDict[bytes, str] = OrderedDict()
        """Key of the session that encoded an image last, by its digest."""

    @contextmanager
    def encoding(self, sequence: SequenceState) -> Iterator[None]:
        """Begin to encode the images of a sequence, if there is an encode worker that is to do so; drop them
        at the end."""
        encode = self._begin(sequence) if sequence.prototype.media else None
        try:
            yield
        finally:
            if encode is not None:
                encode.end()

    def _begin(self, sequence: SequenceState) -> RemoteEncode | None:
        ready = [s for s in self._registry.ready(ROLE_ENCODE) if s.alive and s.info.rows_address]
        if not ready:
            return None
        weights = self._choice.version_for(sequence)
        ready = [session for session in ready if session.info.served.tag == weights]
        items = self._missing(sequence) if ready else []
        if not items:
            return None
        session = min(ready, key=lambda one: (_badness(one), self._seconds(one, items)))
        seconds = self._seconds(session, items)
        if not self._choice.encodes_elsewhere(sequence, seconds, self._token_s(session)):
            return None
        self._watch(session)
        for item in items:
            self._known[item.digest] = session.key
            self._known.move_to_end(item.digest)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        encode = RemoteEncode(sequence, session, items, seconds, self._running.discard)
        self._running.add(encode)
        return encode

    def _missing(self, sequence: SequenceState) -> list[worker_pb2.MediaItem]:
        """Images of which no worker has cached the KV, each once."""
        loads = [session.load for session in self._registry.sessions() if session.role != ROLE_ENCODE]
        cached = max(
            (load.cached.matching_tokens(sequence.blocks(load.page_size)) for load in loads), default=0
        )
        return list(
            {
                item.digest: item
                for item in sequence.prototype.media
                if item.arrays and item.offset + item.length > cached
            }.values()
        )

    def _seconds(self, session: WorkerSession, items: Sequence[worker_pb2.MediaItem]) -> float:
        """Predicted time until the worker has encoded these images, after those that wait there."""
        own = sum(encode.tokens for encode in self._running if encode.session is session)
        waiting = max(own, session.load.encode_tokens)
        tokens = sum(item.length for item in items if self._known.get(item.digest) != session.key)
        return (waiting + tokens) * self._token_s(session)

    def _token_s(self, session: WorkerSession) -> float:
        return self._rates.token_s(session.key) or _FIRST_GUESS_S

    def _watch(self, session: WorkerSession) -> None:
        if session.key not in self._watched:
            self._watched.add(session.key)
            session.on_encoded = partial(self._observe, session.key)

    def _observe(self, key: str, encoded: worker_pb2.Encoded) -> None:
        for image in encoded.items:
            self._rates.observe(key, image.num_tokens, image.end_s - image.begin_s)


def _badness(session: WorkerSession) -> int:
    """0: the worker is well."""
    return 2 * (session.liveness is not Liveness.GOOD) + (session.breaker.state is not CircuitState.CLOSED)
