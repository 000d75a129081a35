"""A worker without threads, sockets and model: engine, request handler and KV endpoint, step by step.

What the threads of a worker pass on to each other waits in queues until the caller lets it go on: commands of
the router, commands to the KV endpoint and its events, and what the router is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np

from common.kv_groups import full_group
from engine.kv_cache.pages import PageState
from kv_transfer import KVEndpoint, KVLayout, KVPort, ReceiverCommands, SenderCommands
from rpc.baton.v1 import worker_pb2
from tests.kv_network import Network, NetworkTransport
from tests.kv_support import Pool
from tests.unit.engine.engines import make_engine
from tests.unit.router.dispatch.attempts.fake_session import FakeSession
from tests.unit.worker.handlers import handled
from worker.session.convert import peer_to_proto

PAGE = 4
HANDOFF_TIMEOUT_S = 10.0
LAYOUT = KVLayout(
    weights="m", dtype="float32", groups=full_group(1), num_kv_heads=1, head_dim=1, page_size=PAGE
)


class _Page:
    """What the fake model keeps of a page, as keys; the values are all 0."""

    def __init__(self, keys: np.ndarray) -> None:
        self._keys = keys

    def __getitem__(self, offset: int) -> int:
        return int(self._keys[offset])

    def __setitem__(self, offset: int, digest: int) -> None:
        self._keys[offset] = digest


class _Stream:
    """The worker's end of the router's stream."""

    router = "the only one"

    def __init__(self) -> None:
        self.batches: deque[worker_pb2.EventBatch] = deque()

    def send(self, batch: worker_pb2.EventBatch) -> None:
        self.batches.append(batch)


class WholeWorker(FakeSession):
    """A worker, and the router's session with it."""

    def __init__(
        self, worker_id: str, epoch: int, network: Network, clock: Callable[[], float], **engine: Any
    ) -> None:
        info = worker_pb2.WorkerInfo(worker_id=worker_id, page_size=PAGE, transport="network", epoch=epoch)
        super().__init__(info, max_running_requests=4)
        self.engine = make_engine(page_size=PAGE, max_running_requests=4, **engine)
        self.engine.kv.cache.keep_journal()
        pages = self.engine.kv.pool.num_pages
        pool = Pool(pages, LAYOUT)
        keys = pool.bytes.reshape(-1).view("<u4").reshape(pages, 2, PAGE)[:, 0]
        runner: Any = self.engine.runner
        runner.memory = [_Page(keys[page]) for page in range(pages)]
        times = count(1)
        name = f"{worker_id}-{epoch}"
        self.port = KVPort(
            NetworkTransport(name, pool, network),
            pool.memory,
            LAYOUT,
            epoch,
            reopen=lambda: NetworkTransport(f"{name}~{next(times)}", pool, network),
        )
        self.endpoint = KVEndpoint(self.port, drain_timeout_s=2.0)
        self.inbox: deque[Callable[[], object]] = deque()
        """Of the engine thread."""
        self.to_endpoint: deque[Callable[[float], None]] = deque()
        """For the transfer thread."""
        self._clock = clock
        self._stream: Any = _Stream()
        transfer: Any = SimpleNamespace(
            sender=SenderCommands(self.endpoint.sender, self.to_endpoint.append),
            receiver=ReceiverCommands(self.endpoint.receiver, self.to_endpoint.append, self._on_event),
            num_unexpected=0,
        )
        self.worker = handled(self.engine, transfer=transfer, clock=clock, timeout_s=HANDOFF_TIMEOUT_S)
        self.worker.handler.open(self._stream)
        self.info.peer.CopyFrom(peer_to_proto(self.port.peer))

    # ------------------------------------------------------------------------------ as a session

    @property
    def says(self) -> int:
        """Batches of events on their way to the router."""
        return len(self._stream.batches)

    def tell(self) -> None:
        """The next batch reaches the router."""
        batch = self._stream.batches.popleft()
        for change in batch.cache:
            self.load.cached.changed(change)
        self.load.report(batch.load, batch.commands)
        for events in (
            batch.started,
            batch.reserved,
            batch.progress,
            batch.arrived,
            batch.tokens,
            batch.handed_off,
            batch.failed,
        ):
            for message in events:
                self.notify(message.request_id, message)

    def lose(self) -> None:
        """The process ends, which the router notices at once."""
        self.port.transport.close()
        self._stream.batches.clear()
        super().lose()

    # ------------------------------------------------------------------------------ its threads

    def take_command(self) -> None:
        command = self.commands.popleft()
        self.inbox.append(lambda: self.worker.handler.handle(self._stream, command, self._clock()))

    def turn(self, *, block: bool = False) -> None:
        """One iteration of the engine thread."""
        while self.inbox:
            self.inbox.popleft()()
        handler, outbox = self.worker.handler, self.worker.outbox
        handler.tick(self._clock())
        outbox.flush_early()
        if self.engine.has_work:
            output = self.engine.step(block=block)
            if not output.blocked:
                handler.on_step(output)
        outbox.report_load(handler.load())
        outbox.report_cache(handler.cache_changes())
        outbox.flush(0)
        self.engine.proceed()

    def transfer(self) -> None:
        """One iteration of the transfer thread."""
        now = self._clock()
        while self.to_endpoint:
            self.to_endpoint.popleft()(now)
        for event in self.endpoint.poll(now):
            self._on_event(event)

    def _on_event(self, event: Any) -> None:
        self.inbox.append(lambda: self.worker.handler.on_transfer(event))

    # ------------------------------------------------------------------------------ what must hold

    def check(self, network: Network) -> None:
        """Every page has one owner, and a peer writes only to pages that were lent."""
        self.engine.check_pages()
        lent = (PageState.IN_FLIGHT, PageState.QUARANTINED)
        for write in network.writes:
            if write.target == self.port.transport.name:
                for copy in write.copies:
                    assert self.engine.kv.pool.state(copy.remote // LAYOUT.page_bytes) in lent

    @property
    def is_at_rest(self) -> bool:
        return not (
            self.inbox
            or self.to_endpoint
            or self.commands
            or self.says
            or self.engine.has_work
            or self.endpoint.sender.num_live
            or self.endpoint.receiver.num_live
        )

    def check_at_rest(self) -> None:
        """Nothing is left of any request."""
        counts = self.engine.check_pages()
        assert counts.free + counts.cached == counts.total
        assert self.worker.handler.idle
        assert not self.listeners
        assert (self.load.requests, self.load.tokens) == (0, 0)
        assert not self.load.cached._expected
        assert self.load.cached._stored == set(self.engine.kv.cache.blocks())
