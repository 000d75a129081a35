"""Models whose layers have windows, handed over by KV endpoints: only pages that the receiver can need."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from engine.core.request import Request
from engine.loop.engine import Engine
from kv_transfer import HandedOff, HandoffState, KVEndpoint, KVPort, Ready
from kv_transfer.transports import LoopbackTransport
from tests.integration.models.test_every_architecture import MAX_TOKENS, finish, new_request
from tests.integration.models.test_windows import CHUNKS_AND_PAGES, PROMPTS, Model
from worker.kv_pool_access import layout_of, memory_of

DIGEST = 5
EPOCHS = count(1)


class Worker:
    """An engine and its KV endpoint. The hooks are those of a worker that sends."""

    def __init__(self, model: Model, chunk: int | None, page: int) -> None:
        self.engine: Engine = model.engine(chunk, page, hooks=self)
        memory, layout = memory_of(self.engine.runner.kv), layout_of(self.engine.runner)
        epoch = next(EPOCHS)
        transport = LoopbackTransport(f"windows-{epoch}", memory)
        self.endpoint = KVEndpoint(KVPort(transport, memory, layout, epoch))
        self.sending: set[int] = set()

    def pages(self, request: Request, upto: int) -> list[int]:
        needs = self.engine.kv.needs
        return request.pages[: needs.blocks(upto) * needs.stride]

    def on_started(self, requests: list[Request]) -> None:
        for request in requests:
            if request.pinned:
                self.sending.add(request.id)
                self.endpoint.sender.open(request.id, 0.0, 60.0)

    def on_computed(self, request: Request, upto: int) -> None:
        if request.id in self.sending and not request.paused:
            self.endpoint.sender.computed(request.id, self.pages(request, upto), upto, 0.0)

    def on_finished(self, request: Request) -> bool:
        if request.id not in self.sending:
            return False
        self.send_rest(request, request.num_tokens - 1, request.num_tokens - 1)
        return True

    def send_rest(self, request: Request, known: int, position: int) -> None:
        final = HandoffState(tuple(request.tokens(known, request.num_tokens)), position, 0, DIGEST)
        self.endpoint.sender.finish(request.id, self.pages(request, position), position, final, 0.0)


def reserve(target: Worker, source: Worker, request: Request, room: int = 0) -> Any:
    reservation = target.engine.reserve(request, room)
    assert reservation is not None
    ticket = target.endpoint.receiver.reserve(
        request.id,
        source.endpoint.peer,
        reservation.incoming,
        reservation.first_token,
        request.num_tokens,
        0.0,
        60.0,
        request_digest=DIGEST,
    )
    source.endpoint.sender.attach(ticket, 0.0)
    return reservation


def deliver(source: Worker, target: Worker, request: Request, reservation: Any) -> HandedOff:
    sent: list[Any] = []
    received: list[Any] = []
    for _ in range(20):
        sent += [e for e in source.endpoint.poll(0.0) if isinstance(e, HandedOff)]
        received += target.endpoint.poll(0.0)
    (ready,) = received
    assert isinstance(ready, Ready), ready
    request.output.extend(ready.final.tokens)
    target.engine.admit_remote(request, reservation, ready.final.position)
    (handed,) = sent
    assert isinstance(handed, HandedOff)
    return handed


@pytest.fixture(scope="module", params=[("www", 8), ("fww", 20), ("wfw", 5)], ids=lambda p: f"{p[0]}-{p[1]}")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(*request.param, tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(("chunk", "page"), CHUNKS_AND_PAGES)
def test_prompts_chunk_by_chunk(model: Model, chunk: int | None, page: int) -> None:
    source, target = Worker(model, chunk, page), Worker(model, chunk, page)
    for attempt in range(2):
        for id, prompt in enumerate(PROMPTS, 10 * attempt):
            sent = new_request(id, prompt, max_tokens=1)
            sent.pinned = True
            source.engine.submit(sent)
            source.engine.step()
            request = new_request(id, prompt)
            reservation = reserve(target, source, request)
            while source.engine.has_work:
                source.engine.step()
                source.endpoint.poll(0.0)
            handed = deliver(source, target, request, reservation)
            assert handed.bytes == len(reservation.incoming) * source.engine.runner.kv.page_bytes
            source.engine.release(sent)
            finish(target.engine)
            assert request.output == model.answers[id - 10 * attempt]
    finish(source.engine)


@pytest.mark.parametrize(("chunk", "page"), CHUNKS_AND_PAGES)
def test_running_answers(model: Model, chunk: int | None, page: int) -> None:
    source, target = Worker(model, chunk, page), Worker(model, chunk, page)
    for id, prompt in enumerate(PROMPTS):
        moving = new_request(id, prompt)
        source.engine.submit(moving)
        while len(moving.output) < 6:
            source.engine.step()
        request = Request(id, list(prompt), moving.sampling, list(moving.output))
        while len(moving.output) < 10:  # the ticket is older than what the answer has left behind
            source.engine.step()
        moving.pinned = True
        source.sending.add(id)
        source.endpoint.sender.open(id, 0.0, 60.0, keeps_decoding=True)
        computed = source.engine.computed(moving)
        source.endpoint.sender.computed(id, source.pages(moving, computed), computed, 0.0)
        reservation = reserve(target, source, request, room=MAX_TOKENS)
        while len(moving.output) < 15:
            source.engine.step()
            source.endpoint.poll(0.0)
        moving.paused = True
        source.send_rest(moving, request.num_tokens, source.engine.computed(moving))
        deliver(source, target, request, reservation)
        source.sending.discard(id)
        source.engine.abort(id)
        finish(target.engine)
        assert request.output == model.answers[id]
    finish(source.engine)


def test_a_page_that_a_window_needs_and_that_was_not_sent_is_never_decoded_from(tmp_path: Path) -> None:
    model = Model("fww", 20, tmp_path)
    source, target = Worker(model, 16, 4), Worker(model, 16, 4)
    sent = new_request(0, PROMPTS[-1], max_tokens=1)
    sent.pinned = True
    source.engine.submit(sent)
    source.engine.step()
    request = new_request(0, PROMPTS[-1])
    reserve(target, source, request)
    hidden = source.pages
    source.pages = lambda request, upto: [*hidden(request, upto)[:-2], -1, -1]  # type: ignore[method-assign]
    while source.engine.has_work:
        source.engine.step()
    received: list[Any] = []
    for _ in range(20):
        source.endpoint.poll(0.0)
        received += target.endpoint.poll(0.0)
    assert not any(isinstance(event, Ready) for event in received)
