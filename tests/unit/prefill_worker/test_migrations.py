"""A running answer on its way to another worker, as its source sees it."""

from __future__ import annotations

from typing import Any

import pytest

from engine.loop.engine import Engine
from kv_transfer import CaughtUp, HandedOff, SendFailed
from prefill_worker.migrations import _LONGEST_PAUSE_S
from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.unit.engine.engines import make_engine
from tests.unit.engine.fake_runner import reference
from tests.unit.worker.handlers import Handled, handled
from worker.session.router_session import RouterSession

PROMPT = [5, 6, 7, 8, 9, 10]
HERE, THERE = 1, 2


class Source:
    """A worker that decodes one request, which has three tokens."""

    def __init__(self, overlap: bool, length: int = 20, **engine: Any) -> None:
        self.engine: Engine = make_engine(overlap=overlap, **engine)
        self.worker: Handled = handled(self.engine)
        self.tokens: list[int] = []
        self.submit(HERE, PROMPT, length)
        while len(self.tokens) < 3:
            self.step()
        self.request = self.worker.jobs.get(HERE).request  # type: ignore[union-attr]

    @property
    def sender(self) -> Any:
        return self.worker.transfer.sender

    def submit(self, request_id: int, prompt: list[int], length: int) -> None:
        sampling = sampling_pb2.SamplingParams(
            max_tokens=length, top_p=1.0, repetition_penalty=1.0, ignore_eos=True
        )
        work = worker_pb2.Work(request_id=request_id, prompt=prompt, sampling=sampling)
        self.command(submit=worker_pb2.Submit(work=work))

    def command(self, **command: Any) -> None:
        session: Any = RouterSession.__new__(RouterSession)
        self.worker.handler.handle(session, worker_pb2.Command(**command), 0.0)

    def step(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.worker.handler.tick(self.worker.clock.now)
            output = self.engine.step()
            self.worker.handler.on_step(output)
            self.tokens += [t.token for t in output.tokens if t.request.id == HERE]
            self.engine.check_pages()

    def migrate(self, known: int | None = None) -> None:
        num_tokens = len(PROMPT) + (len(self.tokens) if known is None else known)
        ticket = worker_pb2.Ticket(handoff_id=THERE, num_tokens=num_tokens, pages=range(20))
        self.command(migrate=worker_pb2.Migrate(request_id=HERE, ticket=ticket))

    def pause(self) -> Any:
        """Until the rest is sent; returns what the receiver is told."""
        self.worker.handler.on_transfer(CaughtUp(THERE))
        for _ in range(2):
            if not self.sender.finish.called:
                self.step()
        (_, pages, num_tokens, final), _ = self.sender.finish.call_args
        assert final.position == num_tokens == len(PROMPT) + len(self.tokens) - 1
        assert len(pages) == -(-num_tokens // self.engine.config.page_size)
        return final

    def finish(self) -> None:
        for _ in range(60):
            self.step()
        assert not self.engine.has_work
        counts = self.engine.check_pages()
        assert counts.free + counts.cached == counts.total


@pytest.fixture(params=[False, True], ids=["", "overlap"])
def source(request: pytest.FixtureRequest) -> Source:
    return Source(overlap=request.param)


def test_pages_are_sent_while_the_request_decodes_and_the_last_one_when_it_is_paused(source: Source) -> None:
    known = len(source.tokens)
    source.migrate()
    source.sender.open.assert_called_once_with(THERE, 60.0, keeps_decoding=True, request_digest=None)
    source.sender.attach.assert_called_once()
    source.step(4)
    assert source.sender.computed.call_count > 3
    final = source.pause()
    assert list(final.tokens) == source.tokens[known:]
    before = list(source.tokens)
    source.step(3)
    assert source.tokens == before, "it is paused"
    source.worker.handler.on_transfer(HandedOff(THERE, 100, ()))
    assert source.tokens == reference(PROMPT, len(before), ignore_eos=True)
    source.finish()


def test_a_request_continues_at_its_source_when_its_migration_fails(source: Source) -> None:
    source.migrate()
    source.step(2)
    source.pause()
    source.worker.handler.on_transfer(SendFailed(THERE, "the test says so"))
    source.finish()
    assert source.tokens == reference(PROMPT, 20, ignore_eos=True)


def test_a_request_paused_for_too_long_continues_before_its_handoff_has_ended(source: Source) -> None:
    source.migrate()
    source.pause()
    source.worker.clock.now = _LONGEST_PAUSE_S
    source.step(30)
    source.sender.abort.assert_called_once_with(THERE)
    assert source.tokens == reference(PROMPT, 20, ignore_eos=True)
    source.worker.handler.on_transfer(HandedOff(THERE, 100, ()))
    source.finish()


def test_a_request_that_ends_keeps_its_pages_while_the_sender_reads_them(source: Source) -> None:
    source.migrate()
    source.step(30)
    assert source.tokens == reference(PROMPT, 20, ignore_eos=True)
    source.sender.abort.assert_called_once_with(THERE)
    assert source.engine.check_pages().held + source.engine.check_pages().cached > 0
    source.worker.handler.on_transfer(SendFailed(THERE, "aborted"))
    source.finish()


def test_an_abort_of_the_migration_does_not_end_the_request(source: Source) -> None:
    source.migrate()
    source.command(abort=worker_pb2.Abort(request_id=THERE))
    source.sender.abort.assert_called_once_with(THERE)
    source.worker.handler.on_transfer(SendFailed(THERE, "aborted"))
    source.step(2)
    assert len(source.tokens) > 3
    source.migrate()
    source.command(abort=worker_pb2.Abort(request_id=HERE))
    source.worker.handler.on_transfer(SendFailed(THERE, "aborted"))
    source.finish()


@pytest.mark.parametrize("known", [100, 4])
def test_a_ticket_for_more_tokens_than_the_request_has_is_refused(source: Source, known: int) -> None:
    source.migrate(known)
    source.sender.open.assert_not_called()
    source.sender.attach.assert_called_once()
    source.finish()
    assert source.tokens == reference(PROMPT, 20, ignore_eos=True)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_migrating_request_is_never_preempted_and_waits_for_its_next_page(overlap: bool) -> None:
    source = Source(overlap, num_pages=10, radix_cache=False)
    source.migrate()
    other = [20 + i for i in range(8)]
    source.submit(3, other, 12)
    source.step(40)
    assert source.request.finish is not None or not source.request.paused
    assert source.tokens == reference(PROMPT, len(source.tokens), ignore_eos=True)
    source.worker.handler.on_transfer(SendFailed(THERE, "the test says so"))
    source.finish()
    assert source.tokens == reference(PROMPT, 20, ignore_eos=True)
