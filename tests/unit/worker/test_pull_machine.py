"""Hypothesis has two workers take prefixes from each other, over a link that does its worst.

The engines' KV can be read, so a token that depends on a page that was not sent, was damaged or was reused
too early differs from the reference. The link digests pages as sender and receiver do; their protocol has a
machine of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from common.block_key import root_key
from common.kv_groups import NO_PAGE, ONE_GROUP, KVGroup, group_layers
from engine.kv.tiers.limits import TierLimits
from engine.kv.tiers.tiers import KVTiers
from kv_transfer import (
    Drained,
    HandedOff,
    HandoffState,
    Peer,
    Ready,
    ReceiveFailed,
    Reserved,
    SendFailed,
    Ticket,
)
from kv_transfer.state_layout import StateLayout
from kv_transfer.ticket_pages import unneeded
from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.kv_workers import LAYOUT
from tests.unit.engine.engines import make_engine
from tests.unit.engine.fake_runner import reference
from tests.unit.engine.kv.tiers.fake_copier import FakeCopier
from tests.unit.worker.handlers import handled

SIZE = 3
PEER = Peer("p~1", 1, b"", 0, 1, 1, 0, "")
GROUPS = [ONE_GROUP, *(group_layers(windows, 64) for windows in ([None, 4], [5], [2, None, 9]))]
PREFIXES = [[seed] * 9 + [1] * 9 for seed in range(3)]


class Side:
    """A worker, with the sender and the receiver of its KV endpoint."""

    def __init__(
        self, overlap: bool, pages: int, slots: int, groups: tuple[KVGroup, ...], states: int
    ) -> None:
        self.engine = make_engine(
            groups=groups,
            page_size=SIZE,
            num_pages=pages * len(groups),
            overlap=overlap,
            max_running_requests=3,
            chunk_budget=9,
            num_state_slots=states if groups == ONE_GROUP else 0,
        )
        runner: Any = self.engine.runner
        self.memory = runner.memory
        state_pages = len(runner.pages_of_slot(0)) if self.engine.kv.states.used else 0
        state = StateLayout(1, ((1, (state_pages * LAYOUT.page_bytes,)),)) if state_pages else None
        self.layout = replace(LAYOUT, groups=groups, page_size=SIZE, state=state)
        self.copier: FakeCopier | None = None
        if slots:
            slots *= len(groups)
            self.copier = FakeCopier(self.memory, slots)
            limits = TierLimits(host_slots=slots, disk_files=0, batch=2, loads=2)
            tiers = KVTiers(limits, groups=groups)
            self.engine.kv.use_tiers(tiers, self.copier, lambda: root_key("model"), runner.pages_of_slot)
        self.worker = handled(self.engine)
        self.session = Mock()
        self.worker.handler.open(self.session)
        self.worker.transfer.receiver.reserve = self.reserve
        self.worker.transfer.receiver.abort = self.abort
        self.worker.transfer.sender.open = lambda id, *_, **__: self.opened.add(id)
        self.worker.transfer.sender.attach = self.attach
        self.worker.transfer.sender.finish = self.finish
        self.lent: dict[int, tuple[Ticket, int]] = {}
        """Ticket and digest of handoffs whose pages are set aside here."""
        self.aborted: set[int] = set()
        self.opened: set[int] = set()
        self.sent: dict[int, tuple[list[list[int]], list[list[int]], HandoffState]] = {}
        """What the sender has read: KV of pages, empty without one, and of the state."""
        self.refused: set[int] = set()
        self.events: list[Any] = []

    def reserve(
        self,
        id: int,
        source: Any,
        pages: list[int],
        first: int,
        tokens: int,
        *,
        timeout_s: float,
        request_digest: int,
        state: Sequence[int],
    ) -> None:
        ticket = Ticket(id, PEER, 0, "", tuple(pages), first, tokens, timeout_s, 0, "", tuple(state))
        assert len(pages) == ticket.order(self.layout).before(tokens // SIZE)
        assert bool(state) == (self.layout.state is not None)
        self.lent[id] = ticket, request_digest
        self.events.append(Reserved(id, ticket))

    def abort(self, id: int) -> None:
        self.aborted.add(id)
        self.events.append(ReceiveFailed(id, "aborted by the receiver"))

    def attach(self, ticket: Any) -> None:
        if ticket.handoff_id not in self.opened:
            self.refused.add(ticket.handoff_id)

    def finish(
        self, id: int, pages: Sequence[int], num_tokens: int, final: HandoffState, *, state: Sequence[int]
    ) -> None:
        assert num_tokens == final.position
        assert self.cached().issuperset(set(pages) - {NO_PAGE}), "it sends what may be evicted"
        table = [[] if page == NO_PAGE else self.memory[page].copy() for page in pages]
        self.sent[id] = table, [self.memory[page].copy() for page in state], final

    def cached(self) -> set[int]:
        cache = self.engine.kv.cache
        return {page for node in cache.nodes() for page in node.pages}

    def post(self) -> None:
        events, self.events = self.events, []
        for event in events:
            self.worker.handler.on_transfer(event)

    def outbox(self) -> list[worker_pb2.EventBatch]:
        self.session.send.reset_mock()
        self.worker.outbox.flush(0)
        return [call.args[0] for call in self.session.send.call_args_list]


class PullMachine(RuleBasedStateMachine):
    @initialize(
        overlap=st.booleans(),
        pages=st.integers(9, 40),
        slots=st.sampled_from([0, 12]),
        groups=st.sampled_from(GROUPS),
        states=st.sampled_from([0, 3, 6]),
    )
    def start(self, overlap: bool, pages: int, slots: int, groups: tuple[KVGroup, ...], states: int) -> None:
        self.sides = [Side(overlap, pages, slots, groups, states), Side(overlap, 30, 0, groups, states)]
        self.now = 0.0
        self.next_id = 0
        self.prompts: dict[int, list[int]] = {}
        self.tickets: dict[int, tuple[worker_pb2.Ticket, list[int]]] = {}
        """Tickets by handoff, with the prompt."""

    prompts_of = st.tuples(st.sampled_from(PREFIXES), st.lists(st.integers(0, 1), min_size=1, max_size=4))

    @rule(place=st.integers(0, 1), prompt=prompts_of, pulled=st.integers(0, 6), steps=st.integers(0, 6))
    def ask(self, place: int, prompt: tuple[list[int], list[int]], pulled: int, steps: int) -> None:
        self.next_id += 2
        tokens = prompt[0] + prompt[1]
        self.prompts[self.next_id] = tokens
        work = worker_pb2.Work(
            request_id=self.next_id,
            prompt=tokens,
            sampling=sampling_pb2.SamplingParams(max_tokens=3),
        )
        submit = worker_pb2.Submit(work=work)
        if pulled:
            source = worker_pb2.Pull(handoff_id=self.next_id + 1, num_tokens=pulled * SIZE)
            submit.pull.CopyFrom(source)
        side = self.sides[place]
        side.worker.handler.handle(side.session, worker_pb2.Command(submit=submit), self.now)
        self.run(steps)

    @rule(steps=st.integers(1, 12))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            for side in self.sides:
                self.turn(side)

    def turn(self, side: Side) -> None:
        side.worker.clock.now = self.now
        side.post()
        side.worker.handler.tick(self.now)
        if side.engine.has_work:
            output = side.engine.step(block=True)
            side.worker.handler.on_step(output)
        else:
            side.engine.poll_tiers()
        if side.copier is not None:
            side.copier.work(disk=False, most=1)
        side.engine.check_pages()
        for batch in side.outbox():
            for wanted in batch.wanted:
                self.tickets[wanted.ticket.handoff_id] = wanted.ticket, self.prompts[wanted.request_id]
            for output in batch.outputs:
                tokens, answer = output.tokens, reference(self.prompts[output.request_id], 3)
                part = answer[tokens.position : tokens.position + len(tokens.ids)]
                assert list(tokens.ids) == part, "a wrong token"
                if tokens.finish:
                    del self.prompts[output.request_id]
            assert not batch.failed

    @rule(data=st.data(), fault=st.sampled_from(["", "", "", "flip", "lost", "dead source"]))
    def transfer(self, data: st.DataObject, fault: str) -> None:
        """The router passes a ticket on, or the link ends what has been sent."""
        if under_way := self.under_way():
            self.advance(data.draw(st.sampled_from(under_way)), fault)

    @rule(turns=st.integers(1, 4))
    def transfer_all(self, turns: int) -> None:
        for _ in range(turns):
            for id in self.under_way():
                self.advance(id, "")
            self.run(1)

    def under_way(self) -> list[int]:
        return sorted(id for side in self.sides for id in side.lent)

    def advance(self, id: int, fault: str) -> None:
        (receiver,) = [side for side in self.sides if id in side.lent]
        sender = self.sides[1 - self.sides.index(receiver)]
        is_known = id in sender.worker.handler._handoffs.shared  # type: ignore[operator,union-attr]
        if id in sender.sent:
            self.arrive(id, sender, receiver, fault)
        elif id in sender.refused or (id in receiver.aborted and not is_known):
            self.fail(id, receiver)
        elif not is_known and id in self.tickets:
            ticket, prompt = self.tickets[id]
            share = worker_pb2.Share(ticket=ticket, tokens=prompt[: ticket.num_tokens + 1])
            sender.worker.handler.handle(sender.session, worker_pb2.Command(share=share), self.now)

    def arrive(self, id: int, sender: Side, receiver: Side, fault: str) -> None:
        table, state, final = sender.sent.pop(id)
        ticket, expected = receiver.lent[id]
        layout, order = receiver.layout, ticket.order(receiver.layout)
        good = final.request_digest == expected and final.fits(ticket, layout)
        blocks = range(order.first_block, max(order.first_block, final.position // SIZE))
        sent = [*zip(ticket.state, state, strict=True)]
        for page, place in zip(ticket.pages, order.places(blocks), strict=False):
            sent.append((page, table[place]))
            good &= bool(table[place]) or unneeded(layout, place, final.position)
        for page, kv in sent:
            receiver.memory[page][: len(kv)] = kv
            if fault == "flip":
                receiver.memory[page][0] ^= 1
        good &= fault == "" and id not in receiver.aborted
        sender.events.append(HandedOff(id, 1, ()) if good else SendFailed(id, fault))
        if good:
            del receiver.lent[id]
            receiver.events.append(Ready(id, final, 0.0, 0.0))
        else:
            self.fail(id, receiver)

    def fail(self, id: int, receiver: Side) -> None:
        """No write of this handoff can land any more."""
        del receiver.lent[id]
        if id not in receiver.aborted:
            receiver.events.append(ReceiveFailed(id, "test"))
        receiver.events.append(Drained(id))

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.run(1)

    @rule(data=st.data(), place=st.integers(0, 1))
    def abort(self, data: st.DataObject, place: int) -> None:
        jobs = sorted(job.id for job in self.sides[place].worker.jobs)
        if jobs:
            request_id = data.draw(st.sampled_from(jobs))
            self.sides[place].worker.handler.abort(request_id)
            del self.prompts[request_id]

    def teardown(self) -> None:
        if not hasattr(self, "sides"):
            return
        for _ in range(300):
            self.now += 1.0
            for id in self.under_way():
                self.advance(id, "")
            self.run(1)
        assert not self.prompts, "a request was forgotten"
        for side in self.sides:
            assert not side.lent
            counts = side.engine.check_pages()
            assert counts.free + counts.cached == counts.total
            assert side.engine.kv.num_available == counts.total, "a page stays locked"
            states = side.engine.kv.states
            assert states.num_available == states.pool.num_pages, "a slot stays locked"


TestPullMachine = PullMachine.TestCase
TestPullMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
