"""Requests whose pages a peer may read, beside others that drive the pool full."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from tests.unit.engine.engines import make_engine, make_request
from tests.unit.engine.fake_runner import reference


class Peer:
    """Keeps the pages of pinned requests that have ended, and notes where they were meanwhile."""

    def __init__(self) -> None:
        self.read: dict[int, list[int]] = {}
        self.ended: list[Request] = []

    def on_started(self, requests: list[Request]) -> None:
        pass

    def on_computed(self, request: Request, upto: int) -> None:
        if request.pinned:
            pages = request.pages[: -(-upto // 4)]
            known = self.read.get(request.id, [])
            assert pages[: len(known)] == known, "pages that the peer reads have moved"
            self.read[request.id] = pages

    def on_finished(self, request: Request) -> bool:
        if request.pinned:
            self.ended.append(request)
        return request.pinned


def pinned(id: int, prompt: list[int]) -> Request:
    return Request(id, prompt, SamplingParams(max_tokens=1, ignore_eos=True), pinned=True)


def step(engine: Engine, steps: int = 1) -> None:
    for _ in range(steps):
        engine.step()
        engine.check_pages()


@pytest.mark.parametrize("overlap", [False, True])
def test_decodes_that_fill_the_pool_preempt_each_other_and_no_pinned_request(overlap: bool) -> None:
    peer = Peer()
    engine = make_engine(peer, num_pages=16, overlap=overlap, radix_cache=False)
    engine.scheduler._lengths._mean = 1.0  # it expects short answers, and admits too many
    prompts = [list(range(n, n + 8)) for n in (1, 20)]
    decodes = [make_request(id, prompt, 32, min_tokens=32) for id, prompt in enumerate(prompts)]
    for request in decodes:
        engine.submit(request)
    step(engine, 3)
    handed_off = pinned(9, list(range(40, 64)))
    engine.submit(handed_off)
    step(engine, 40)
    assert engine.stats().preemptions > 0
    assert peer.ended == [handed_off]
    assert handed_off.pages[:6] == peer.read[9], "they stay until they are released"
    engine.release(handed_off)
    step(engine, 80)
    assert not engine.has_work
    assert [r.output for r in decodes] == [reference(p, 32) for p in prompts]


@settings(max_examples=60, deadline=None)
@given(
    work=st.lists(st.tuples(st.booleans(), st.integers(1, 30)), min_size=2, max_size=10),
    hold=st.integers(0, 12),
    overlap=st.booleans(),
)
def test_whatever_is_mixed_pages_that_a_peer_reads_stay_and_tokens_are_right(
    work: list[tuple[bool, int]], hold: int, overlap: bool
) -> None:
    peer = Peer()
    engine = make_engine(peer, num_pages=20, overlap=overlap)
    requests = []
    for id, (is_pinned, length) in enumerate(work):
        prompt = [(id * 13 + i) % 60 + 1 for i in range(length)]
        requests.append(pinned(id, prompt) if is_pinned else make_request(id, prompt, 20))
        engine.submit(requests[-1])
        step(engine)
    for turn in range(2000):
        step(engine)
        if peer.ended and turn % (hold + 1) == hold:
            engine.release(peer.ended.pop(0))
        if not engine.has_work and not peer.ended:
            break
    assert not engine.has_work
    counts = engine.check_pages()
    assert counts.free + counts.cached == counts.total
    for request in requests:
        wanted = reference(list(request.prompt), request.sampling.max_tokens)
        assert request.output == wanted if not request.pinned else len(request.output) == 1


def test_a_request_that_is_handed_off_does_not_count_in_the_forecast_of_answers() -> None:
    peer = Peer()
    engine = make_engine(peer, num_pages=64)
    before = engine.scheduler._lengths._mean
    for id in range(5):
        engine.submit(pinned(id, [id + 1, 2, 3]))
        step(engine, 3)
        engine.release(peer.ended.pop())
    assert engine.scheduler._lengths._mean == before


def test_prompts_that_only_wait_for_room_in_a_step_keep_no_handoff_from_its_pages() -> None:
    engine = make_engine(num_pages=256, chunk_budget=16, max_running_requests=32)
    for id in range(20):
        engine.submit(make_request(id, [(id * 7 + i) % 60 + 1 for i in range(24)]))
    engine.step()
    assert engine.stats().waiting > 0
    assert engine.stats().starved == 0
    assert engine.reserve(make_request(99, [1, 2, 3])) is not None


def test_requests_that_wait_for_pages_go_before_a_handoff_and_an_aborted_one_keeps_none_waiting() -> None:
    engine = make_engine(num_pages=8, radix_cache=False)
    engine.submit(make_request(1, list(range(1, 25)), 4))
    engine.step()
    engine.submit(make_request(2, list(range(30, 54))))
    engine.step()
    assert engine.stats().starved == 1
    assert engine.reserve(make_request(99, [1])) is None
    engine.abort(2)
    assert engine.reserve(make_request(99, [1])) is not None
