"""A worker executes a fence, frees pages that will never be filled, and reports its new transport."""

from __future__ import annotations

from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.kv_network import Network
from tests.unit.engine.engines import make_engine
from tests.unit.whole_cluster.whole_worker import Kind, WholeWorker
from tests.unit.worker.handlers import Clock, Stream
from worker.adapters.loading import AdapterLoading
from worker.grammar_loading import GrammarLoading
from worker.request_handler import RequestHandler
from worker.session.answers import Answers
from worker.session.inbox import Inbox
from worker.session.metrics import WorkerMetrics
from worker.session.outbox import Outbox

FENCE = worker_pb2.Command(fence=worker_pb2.Fence(worker_id="prefill-0", epoch=7, reason="no power"))
PROMPT = [5, 6, 7, 8, 9]
HANDOFF_S = 5.0


class Receiver:
    """A worker with pages that another one may write, and a clock."""

    def __init__(self) -> None:
        self.clock, self.network = Clock(), Network()
        self.worker, self.sender = (
            WholeWorker(name, epoch, self.network, self.clock, Kind())
            for name, epoch in (("decode-0", 9), ("prefill-0", 7))
        )
        self.reserve(1)

    def does(self, *commands: worker_pb2.Command) -> list[worker_pb2.EventBatch]:
        """What the router hears after the worker's threads have done what these commands take."""
        self.worker.commands.extend(commands)
        while self.worker.commands:
            self.worker.take_command()
        for _ in range(3):
            self.worker.turn()
            self.worker.transfer()
        self.worker.turn()
        self.worker.engine.check_pages()
        return self.worker.heard()

    def reserve(self, request_id: int) -> list[worker_pb2.EventBatch]:
        sampling = sampling_pb2.SamplingParams(max_tokens=4)
        work = worker_pb2.Work(request_id=request_id, prompt=PROMPT, sampling=sampling)
        reserve = worker_pb2.Reserve(work=work, sender=self.sender.info.peer, timeout_s=HANDOFF_S)
        return self.does(worker_pb2.Command(reserve=reserve))

    @property
    def lent(self) -> int:
        """Pages that the sender may write."""
        counts = self.worker.engine.check_pages()
        return counts.in_flight + counts.quarantined


def test_a_fence_frees_the_pages_of_a_worker_that_hangs_and_refuses_it() -> None:
    receiver = Receiver()
    assert receiver.lent
    receiver.clock.now += 2 * HANDOFF_S
    receiver.does()
    assert receiver.lent, "the sender may still write"
    receiver.does(FENCE)
    assert not receiver.lent
    [refused] = [failed for batch in receiver.reserve(2) for failed in batch.failed]
    assert "prefill-0" in refused.message
    assert not receiver.lent


def test_a_worker_with_pages_in_quarantine_is_idle_so_that_its_pages_are_checked() -> None:
    receiver = Receiver()
    handler = receiver.worker.worker.handler
    assert not handler.idle
    receiver.clock.now += 2 * HANDOFF_S
    receiver.does()
    assert receiver.lent
    assert handler.idle


def test_a_transport_that_a_fence_reopens_is_reported_once_to_every_router() -> None:
    receiver, late = Receiver(), Stream()
    before = receiver.worker.info.peer.name
    reported = [batch.peer.name for batch in receiver.does(FENCE) if batch.HasField("peer")]
    receiver.worker.worker.handler.open(late)
    receiver.does()
    [now] = [batch.peer.name for batch in late.batches if batch.HasField("peer")]
    assert reported == [now]
    assert now != before
    assert not any(batch.HasField("peer") for batch in receiver.does())


def test_a_worker_without_a_transport_has_no_peers_to_fence() -> None:
    engine, stream = make_engine(), Stream()
    answers = Answers(Outbox(), WorkerMetrics())
    adapters = AdapterLoading(engine.adapters, Inbox(), answers.metrics)
    handler = RequestHandler(engine, answers, Clock(), GrammarLoading(engine.grammars, Inbox()), adapters)
    handler.open(stream)
    handler.handle(stream, FENCE, 0.0)
    assert handler.idle
