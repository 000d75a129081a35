"""The router's part when a worker gets cached KV from another one."""

from __future__ import annotations

from typing import Any

from router.dispatch.attempts.mixed_attempt import MixedAttempt
from router.dispatch.routing.route import CachedElsewhere, Route
from router.dispatch.sequence import SequenceState
from router.dispatch.waterfall import Waterfall
from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.unit.router.dispatch.attempts.fake_session import FakeSession

PROMPT = list(range(40))


def session(name: str) -> Any:
    info = worker_pb2.WorkerInfo(worker_id=name, page_size=4, peer=worker_pb2.Peer(name=f"{name}~1"))
    return FakeSession(info, 8)


class Pulling:
    """An attempt on worker b, which is to get 20 tokens from worker a."""

    def __init__(self) -> None:
        self.a, self.b = session("a"), session("b")
        self.transfers: list[tuple[Any, ...]] = []
        sequence = SequenceState(
            worker_pb2.Work(prompt=PROMPT, sampling=sampling_pb2.SamplingParams(max_tokens=8)), Waterfall(0.0)
        )
        self.attempt = MixedAttempt(
            sequence,
            Route(
                lambda _: self.b,
                is_local=True,
                why="test",
                source=CachedElsewhere(self.a, 20),
                on_transfer=lambda *args: self.transfers.append(args),
            ),
        )

    def begin(self) -> worker_pb2.Submit:
        self.attempt._begin()
        submit: worker_pb2.Submit = self.b.commands.popleft().submit
        return submit

    def want(self, submit: worker_pb2.Submit, handoff_id: int) -> None:
        ticket = worker_pb2.Ticket(handoff_id=handoff_id, num_tokens=20)
        request_id = submit.work.request_id
        self.b.notify(request_id, worker_pb2.Wanted(request_id=request_id, ticket=ticket))


async def test_the_ticket_goes_to_the_source_with_the_tokens_and_the_one_behind() -> None:
    pulling = Pulling()
    submit = pulling.begin()
    assert (submit.pull.source.name, submit.pull.num_tokens) == ("a~1", 20)
    pulling.want(submit, submit.pull.handoff_id)
    (command,) = pulling.a.commands
    assert command.share.ticket.handoff_id == submit.pull.handoff_id
    assert list(command.share.tokens) == PROMPT[:21]
    span = worker_pb2.Span(begin_s=1.0, end_s=3.0)
    sent = worker_pb2.HandedOff(request_id=submit.pull.handoff_id, bytes=64, pushes=[span])
    pulling.a.notify(submit.pull.handoff_id, sent)
    assert pulling.transfers == [(pulling.a.key, pulling.b.key, 64, 2.0)]


async def test_a_ticket_of_another_pull_goes_nowhere() -> None:
    pulling = Pulling()
    pulling.want(pulling.begin(), 5)
    assert not pulling.a.commands


async def test_a_source_that_is_lost_is_not_named_and_does_not_end_the_attempt() -> None:
    pulling = Pulling()
    submit = pulling.begin()
    pulling.a.lose()
    pulling.want(submit, submit.pull.handoff_id)
    assert not pulling.attempt._finished.done()
    after = Pulling()
    after.a.lose()
    assert not after.begin().HasField("pull")
