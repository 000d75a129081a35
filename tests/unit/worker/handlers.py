"""Request handlers with a KV endpoint that only notes what it is told."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

from decode_worker.incoming import IncomingHandoffs
from decode_worker.pulled_prefixes import PulledPrefixes
from prefill_worker.migrations import Migrations
from prefill_worker.outgoing import OutgoingHandoffs
from prefill_worker.page_sender import PageSender
from prefill_worker.shared_prefixes import SharedPrefixes
from rpc.baton.v1 import worker_pb2
from worker.adapters.loading import AdapterLoading
from worker.grammar_loading import GrammarLoading
from worker.handoffs import Handoffs
from worker.request_handler import RequestHandler
from worker.session.answers import Answers
from worker.session.handoff_reports import HandoffReports
from worker.session.inbox import Inbox
from worker.session.metrics import WorkerMetrics
from worker.session.outbox import Outbox


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Stream:
    """The worker's end of a router's stream."""

    router = "the only one"
    without_ray = False

    def __init__(self) -> None:
        self.batches: deque[worker_pb2.EventBatch] = deque()

    def send(self, batch: worker_pb2.EventBatch) -> None:
        self.batches.append(batch)


@dataclass
class Handled:
    """A handler and what a test looks at."""

    engine: Any
    outbox: Any
    transfer: Any = field(default_factory=Mock)
    clock: Any = field(default_factory=Clock)
    timeout_s: float = 60.0
    """Timeout of handoffs."""
    inbox: Inbox = field(default_factory=Inbox)

    def __post_init__(self) -> None:
        self.answers = Answers(self.outbox, WorkerMetrics())
        self.jobs = self.answers.jobs
        reports = HandoffReports(self.answers)
        sender = PageSender(self.transfer.sender, reports, self.engine, self.timeout_s)
        outgoing = OutgoingHandoffs(self.engine, reports, self.clock, sender)
        incoming = IncomingHandoffs(self.engine, reports, self.transfer.receiver)
        migrations = Migrations(self.engine, reports, self.clock, sender)
        shared = SharedPrefixes(self.engine, self.clock, self.transfer.sender)
        pulled = PulledPrefixes(self.engine, reports, self.clock, self.transfer.receiver)
        handoffs = Handoffs(self.transfer, outgoing, migrations, incoming, shared, pulled)
        grammars = GrammarLoading(self.engine.grammars, self.inbox)
        adapters = AdapterLoading(self.engine.adapters, self.inbox, self.answers.metrics)
        self.handler = RequestHandler(self.engine, self.answers, self.clock, grammars, adapters, handoffs)
        self.engine.hooks = self.handler


def handled(engine: Any, outbox: Any = None, **rest: Any) -> Handled:
    return Handled(engine, Outbox() if outbox is None else outbox, **rest)
