"""A worker without threads, sockets and model: engine, request handler and KV endpoint, step by step.

What the threads of a worker pass on to each other waits in queues until the caller lets it go on: commands of
the router, commands to the KV endpoint and its events, and what the router is told.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, MutableSequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np

from common.block_key import root_key
from common.kv_groups import full_group, group_layers
from engine.config import LoraConfig, SpeculationConfig
from engine.core.request import Request
from engine.kv.cache.pages import PageState
from engine.kv.tiers.limits import TierLimits
from engine.kv.tiers.tiers import KVTiers
from engine.model_config.parts.layer_options import Pooling
from engine.model_config.pooling_spec import PoolingSpec
from engine.speculation.drafters import Drafter
from kv_transfer import KVEndpoint, KVLayout, KVPort, ReceiverCommands, SenderCommands
from kv_transfer.state_layout import StateLayout
from rpc.baton.v1 import worker_pb2
from tests.kv_network import Network, NetworkTransport
from tests.kv_support import Pool
from tests.oracle import Oracle, speculate
from tests.unit.engine.engines import make_engine
from tests.unit.engine.fake_runner import VECTOR, VOCAB, reference
from tests.unit.engine.kv.tiers.fake_copier import FakeCopier
from tests.unit.router.dispatch.attempts.fake_session import FakeSession
from tests.unit.whole_cluster.questions import ADAPTERS
from tests.unit.whole_cluster.travelling_adapters import BlindAdapters, FakeCopies, LaterThreads
from tests.unit.worker.handlers import Stream, handled
from worker.session.convert import peer_to_proto

PAGE = 4
SEEING = "w0"
HANDOFF_TIMEOUT_S = 10.0
LAYOUT = KVLayout(
    model="m", dtype="float32", groups=full_group(1), num_kv_heads=1, head_dim=1, page_size=PAGE
)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a worker's KV is, where it goes, and whether its tokens are drafted."""

    windows: tuple[int | None, ...] = (None,)
    """Windows of the groups of layers."""
    num_state_slots: int = 0
    host_slots: int = 0
    """Pages on the tier below the pool; 0: there is none."""
    num_files: int = 0
    """Pages on the tier below that."""
    right: float | None = None
    """How often a draft is right; None: there are no drafts."""
    pooling: Pooling | None = None
    """How prompts become vectors; None: the model generates text, and has log-probabilities of labels."""
    kept: int | None = None
    """Adapters that workers keep which see no folder: all but the one named SEEING. None: all have all."""


class _Page(MutableSequence[int]):
    """What the fake model keeps of a page, as keys; it leaves the values alone."""

    def __init__(self, keys: np.ndarray) -> None:
        self._keys = keys

    def __getitem__(self, place: Any) -> Any:
        return self._keys[place].tolist()

    def __setitem__(self, place: Any, digest: Any) -> None:
        self._keys[place] = digest

    def __len__(self) -> int:
        return len(self._keys)

    def __delitem__(self, place: Any) -> None:
        raise TypeError("pages do not shrink")

    def insert(self, index: int, value: int) -> None:
        raise TypeError("pages do not grow")

    def copy(self) -> list[int]:
        return self[:]


class WholeWorker(FakeSession):
    """A worker, and the router's session with it."""

    def __init__(
        self,
        worker_id: str,
        epoch: int,
        network: Network,
        clock: Callable[[], float],
        kind: Kind,
        fellows: Callable[[], Iterable[WholeWorker]] = tuple,
        **engine: Any,
    ) -> None:
        """`fellows`: the workers that there are, this one among them."""
        info = worker_pb2.WorkerInfo(worker_id=worker_id, page_size=PAGE, transport="network", epoch=epoch)
        super().__init__(info, max_running_requests=4)
        groups = group_layers(kind.windows, 64)
        states = kind.num_state_slots
        ticks = count()  # some waits are measured, and time must not stand still
        engine |= {
            "groups": groups,
            "num_state_slots": states,
            "clock": lambda: clock() + next(ticks) * 1e-6,
            "adapters": ADAPTERS if kind.pooling is None else (),
            "pooling": kind.pooling and PoolingSpec(kind.pooling, size=VECTOR, keeps_sums=kind.pooling.sums),
        }
        if kind.kept is not None and worker_id != SEEING:
            lora = LoraConfig(max_loras=1, max_cpu_loras=kind.kept)
            engine |= {"adapters": (), "bank": BlindAdapters(), "lora": lora}
        self.engine = make_engine(page_size=PAGE, max_running_requests=4, **engine)
        runner: Any = self.engine.runner
        pages = len(runner.memory)
        of_slot = len(runner.pages_of_slot(0))
        state = StateLayout(1, ((1, (of_slot * LAYOUT.page_bytes,)),)) if states else None
        layout = replace(LAYOUT, groups=groups, state=state)
        pool = Pool(pages, layout)
        pool.bytes[:] = 0xEE
        keys = pool.bytes.reshape(-1).view("<u4").reshape(pages, 2, PAGE)[:, 0]
        runner.memory = [_Page(keys[page]) for page in range(pages)]
        self.copier: FakeCopier | None = None
        self._keep_cache(kind)
        if kind.right is not None:
            rng, right = random.Random(epoch), kind.right

            def drafters_of(request: Request) -> list[Drafter]:
                keys, namespace = request.keys(0, len(request.prompt)), request.namespace
                answer = reference(keys, request.sampling.max_tokens, ignore_eos=True, namespace=namespace)
                return [Oracle(answer, VOCAB, right, rng)]

            speculate(self.engine, SpeculationConfig(num_draft_tokens=3, adaptive=False), drafters_of)
        times = count(1)
        name = f"{worker_id}-{epoch}"
        self.port = KVPort(
            NetworkTransport(name, pool, network),
            pool.memory,
            layout,
            epoch,
            reopen=lambda: NetworkTransport(f"{name}~{next(times)}", pool, network),
            sidecars=self.engine.kv.sidecars,
        )
        self.endpoint = KVEndpoint(self.port, drain_timeout_s=2.0)
        self.inbox: deque[Callable[[], object]] = deque()
        """Inbox of the engine thread."""
        self.to_endpoint: deque[Callable[[float], None]] = deque()
        """For the transfer thread."""
        self._clock = clock
        self._stream: Any = Stream()
        transfer: Any = SimpleNamespace(
            sender=SenderCommands(self.endpoint.sender, self.to_endpoint.append),
            receiver=ReceiverCommands(self.endpoint.receiver, self.to_endpoint.append, self._on_event),
            fence=lambda epoch, reason: self.to_endpoint.append(partial(self.endpoint.fence, epoch, reason)),
            num_unexpected=0,
        )
        self.worker = handled(self.engine, transfer=transfer, clock=clock, timeout_s=HANDOFF_TIMEOUT_S)
        self.worker.handler.open(self._stream)
        self.readers, self.copies = LaterThreads(), FakeCopies(fellows)
        loading: Any = self.worker.handler.adapters
        loading._threads, loading._copies = self.readers, self.copies
        self.info.adapters_address, self.info.adapters_key = name, loading.key
        self.adapters.peers = lambda: [fellow.adapters for fellow in fellows() if fellow is not self]
        self.info.peer.CopyFrom(peer_to_proto(self.port.peer))

    def _keep_cache(self, kind: Kind) -> None:
        kv = self.engine.kv
        runner: Any = self.engine.runner
        if not (kind.host_slots and kv.cache.enabled):
            kv.cache.keep_journal()
            return
        host = kind.host_slots
        limits = TierLimits(host_slots=host, disk_files=kind.num_files, batch=2, loads=2)
        self.copier = FakeCopier(runner.memory, host, sidecars=kv.sidecars)
        tiers = KVTiers(limits, groups=kv.needs.groups)
        kv.use_tiers(tiers, self.copier, lambda: root_key("model"), runner.pages_of_slot)

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
        if batch.HasField("load"):
            self.adapters.report(batch.load.adapters)
        for events in (
            batch.started,
            batch.reserved,
            batch.wanted,
            batch.progress,
            batch.arrived,
            batch.outputs,
            batch.handed_off,
            batch.failed,
        ):
            for message in events:
                self.notify(message.request_id, message)

    def heard(self) -> list[worker_pb2.EventBatch]:
        """All batches on their way, which the router's account of this worker does not get."""
        batches = list(self._stream.batches)
        self._stream.batches.clear()
        return batches

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
        self.worker.inbox.run(0.0)
        handler, outbox = self.worker.handler, self.worker.outbox
        handler.tick(self._clock())
        outbox.flush()
        if self.engine.has_work:
            output = self.engine.step(block=block)
            if not output.blocked:
                handler.on_step(output)
        else:
            self.engine.poll_tiers()
        outbox.report_load(handler.load())
        outbox.report_cache(handler.cache_changes())
        outbox.flush(0)
        self.engine.proceed()

    def copy(self) -> None:
        """What the threads of tiers do."""
        if self.copier is not None:
            self.copier.work(disk=False)
            self.copier.work(disk=True)

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
                    assert self._state(copy.remote // LAYOUT.page_bytes) in lent

    def _state(self, page: int) -> PageState:
        """Pages of slots for states are behind the others."""
        kv, runner = self.engine.kv, self.engine.runner
        if page < kv.pool.num_pages:
            return kv.pool.state(page)
        return kv.states.pool.state((page - kv.pool.num_pages) // len(runner.pages_of_slot(0)))

    @property
    def is_at_rest(self) -> bool:
        return not (
            self.inbox
            or self.to_endpoint
            or self.readers
            or self.commands
            or self.says
            or self.engine.has_work
            or self.endpoint.sender.num_live
            or self.endpoint.receiver.num_live
        )

    def check_at_rest(self) -> None:
        """Nothing is left of any request."""
        for _ in range(3):
            self.copy()
            self.turn()
        while self.says:
            self.tell()
        counts = self.engine.check_pages()
        assert counts.free + counts.cached == counts.total
        assert self.worker.handler.idle
        assert not self.listeners
        assert (self.load.requests, self.load.tokens) == (0, 0)
        assert not self.load.cached._expected
        assert self.load.cached._stored == {
            block for change in self.engine.kv.contents() for block in change.blocks
        }
        states = self.engine.kv.states
        slots = states.pool.counts()
        assert slots.free + slots.cached == slots.total
        assert states.num_available == slots.total, "a checkpoint is read for ever"
