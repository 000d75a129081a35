"""Takes what workers report about their prefix caches, and the tokens of ended requests, to the publisher."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from common.background import cancelled, repeat, supervised
from common.block_hash import BlockHash
from router.config.groups.service import OperationSettings
from router.dispatch.dispatcher import OnEnd
from router.dispatch.kv_events.blocks import CachedBlocks, named_by
from router.dispatch.sequence import SequenceState
from router.dispatch.workers.member import Member
from router.dispatch.workers.session import WorkerSession

if TYPE_CHECKING:  # its packages are optional
    from router.dispatch.kv_events.publisher import Publisher

_log = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.05
"""Between two batches."""


class KVEventFeed:
    """A context manager that publishes. All methods belong to the event loop."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher: Final = publisher
        self._blocks: CachedBlocks | None = None
        """None until the first worker has connected: its page size is that of all workers."""
        self._followed: dict[str, WorkerSession] = {}
        """Followed sessions by worker id."""

    async def __aenter__(self) -> KVEventFeed:
        """Raises OSError."""
        await self._publisher.open()
        publishing = repeat(self._publish, _INTERVAL_S, _log, "KV events are not published")
        self._publishing = supervised(publishing, "KV events")
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancelled(self._publishing)
        await self._publisher.close()

    def worker_changed(self, member: Member, up: bool) -> None:
        """A worker connects, is lost, or gets another role."""
        worker_id, session = member.handle.worker_id, member.session
        before = self._followed.get(worker_id)
        if before is not None and (not up or before is not session):
            before.on_cache = _ignore
            del self._followed[worker_id]
            if self._blocks is not None:
                self._blocks.lost(worker_id)
        if up and session is not None and before is not session:
            self._follow(worker_id, session)

    def before(self, then: OnEnd) -> OnEnd:
        """A callback for the end of every request, which goes on to `then`."""

        def ended(sequence: SequenceState, outcome: str, at: float) -> None:
            if self._blocks is not None:
                self._blocks.learn([*sequence.prompt, *sequence.output], named_by(sequence.prototype))
            then(sequence, outcome, at)

        return ended

    def _follow(self, worker_id: str, session: WorkerSession) -> None:
        if self._blocks is None:
            self._blocks = CachedBlocks(session.load.page_size)
        self._followed[worker_id] = session
        self._blocks.stored(worker_id, session.load.cached.blocks)
        session.on_cache = partial(_changed, self._blocks, worker_id)

    async def _publish(self) -> None:
        if self._blocks is not None and (events := self._blocks.take()):
            await self._publisher.send(events, self._blocks.page_size)


def _changed(blocks: CachedBlocks, worker_id: str, stored: bool, changed: Sequence[BlockHash]) -> None:
    (blocks.stored if stored else blocks.removed)(worker_id, changed)


def _ignore(stored: bool, changed: Sequence[BlockHash]) -> None:
    """Nobody follows the session."""


def kv_event_feed(operation: OperationSettings, model: str) -> KVEventFeed:
    """As configured; --kv-events must be given."""
    from router.dispatch.kv_events.publisher import Publisher

    assert operation.kv_events is not None
    topic = operation.kv_events_topic or f"kv@{socket.gethostname()}@{model}"
    return KVEventFeed(Publisher(operation.kv_events, operation.kv_events_replay, topic))
