"""The TTFT waterfall: stages that follow each other without gaps."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.waterfall import Waterfall, without_workers
from rpc.baton.v1 import router_pb2, worker_pb2


class Observer:
    def __init__(self) -> None:
        self.first: list[router_pb2.Timings] = []
        self.second: list[router_pb2.Timings] = []
        self.gaps: list[float] = []
        self.on_first_token = self.first.append
        self.on_second_token = self.second.append
        self.on_pause = lambda pause: None

    def on_gap(self, seconds: float, count: int) -> None:
        self.gaps += [seconds] * count


def started(queued_s: float) -> worker_pb2.Started:
    return worker_pb2.Started(queued_s=queued_s)


def test_a_handoff_hidden_behind_the_prefill_costs_nothing() -> None:
    marks = Waterfall(arrival=100.0)
    marks.attempt(100.5)
    marks.start(started(0.5), at=101.2)
    marks.reserve(101.3)
    marks.tokens(1, 103.0)
    marks.arrive(103.25)
    marks.tokens(1, 103.5)
    timings = marks.timings(110.0)
    assert (timings.queue_s, timings.prefill_s, timings.reserve_s) == (1.0, 2.0, 0.0)
    assert (timings.transfer_s, timings.first_decode_s) == (0.25, 0.25)
    assert (timings.ttft_s, timings.e2e_s) == (3.0, 10.0)


def test_a_read_ends_with_its_numbers() -> None:
    told: list[router_pb2.Timings] = []
    observer = Observer()
    observer.on_read = told.append  # type: ignore[attr-defined]
    marks = Waterfall(arrival=100.0, observer=observer)  # type: ignore[arg-type]
    marks.attempt(100.5)
    assert marks.timings(101.0).read_s == 0.0
    marks.start(started(0.5), at=101.2)
    marks.read(103.0)
    assert told == [marks.timings(103.0)]
    [timings] = told
    assert (timings.queue_s, timings.prefill_s) == (1.0, 2.0)
    assert timings.read_s == timings.e2e_s == 3.0
    assert timings.first_decode_s == 0.0
    assert not observer.first


def test_a_late_reservation_is_the_reserve_stage() -> None:
    marks = Waterfall(arrival=0.0)
    marks.attempt(0.0)
    marks.start(started(1.0), at=1.0)
    marks.tokens(1, 2.0)
    marks.reserve(5.0)
    marks.arrive(6.0)
    timings = marks.timings(7.0)
    assert (timings.reserve_s, timings.transfer_s) == (3.0, 1.0)


def test_an_attempt_that_gave_no_token_counts_as_queueing() -> None:
    marks = Waterfall(arrival=0.0)
    marks.attempt(0.0)
    marks.start(started(0.0), at=0.1)
    marks.attempt(4.0)
    marks.start(started(1.0), at=5.5)
    marks.tokens(1, 6.0)
    assert marks.timings(6.0).queue_s == 5.0


def test_spans_count_from_the_arrival_at_the_router() -> None:
    marks = Waterfall(arrival=10.0)
    marks.attempt(12.0)
    span = worker_pb2.Span(begin_s=1.0, end_s=2.0, first_token=16, num_tokens=32, bytes=64)
    marks.on_handed_off(worker_pb2.HandedOff(chunks=[span], pushes=[span, span]))
    timings = marks.timings(20.0)
    (chunk,) = timings.chunks
    assert (chunk.begin_s, chunk.end_s, chunk.first_token, chunk.num_tokens, chunk.bytes) == (
        3,
        4,
        16,
        32,
        64,
    )
    assert len(timings.pushes) == 2


def test_chunks_are_those_of_the_attempt_that_gave_the_first_token() -> None:
    marks = Waterfall(arrival=0.0)
    for first in (0, 16):
        marks.attempt(0.0)
        span = worker_pb2.Span(begin_s=1.0, end_s=2.0, first_token=first, num_tokens=16)
        marks.on_handed_off(worker_pb2.HandedOff(chunks=[span], pushes=[span]))
    marks.tokens(1, 3.0)
    marks.attempt(4.0)
    marks.computed([worker_pb2.Span(begin_s=1.0, end_s=2.0, num_tokens=64)], sent_at=4.0)
    assert [chunk.first_token for chunk in marks.timings(9.0).chunks] == [16]


def test_tokens_that_arrive_together_share_their_inter_token_latency() -> None:
    observer = Observer()
    marks = Waterfall(arrival=0.0, observer=observer)
    for at, count in ((1.0, 1), (1.5, 1), (2.5, 2)):
        marks.tokens(count, at)
    assert observer.gaps == [0.5, 0.5, 0.5]


def test_each_stage_is_reported_once_when_it_is_final() -> None:
    observer = Observer()
    marks = Waterfall(arrival=100.0, observer=observer)
    marks.attempt(100.0)
    marks.start(started(1.0), at=101.0)
    assert not observer.first
    marks.tokens(1, 103.0)
    (first,) = observer.first
    assert (first.ttft_s, first.queue_s, first.prefill_s) == (3.0, 1.0, 2.0)
    assert not observer.second
    marks.reserve(104.0)
    marks.arrive(106.0)
    marks.tokens(1, 109.0)
    marks.tokens(3, 110.0)
    (second,) = observer.second
    assert (second.reserve_s, second.transfer_s, second.first_decode_s) == (1.0, 2.0, 3.0)
    assert len(observer.first) == 1


def test_two_tokens_that_arrive_together_are_first_and_second() -> None:
    observer = Observer()
    marks = Waterfall(arrival=0.0, observer=observer)
    marks.attempt(0.0)
    marks.tokens(3, 2.0)
    assert (len(observer.first), len(observer.second)) == (1, 1)
    assert observer.gaps == [0.0, 0.0]


@given(
    st.lists(st.tuples(st.sampled_from(["start", "reserve", "tokens", "arrive", "attempt"]), st.floats(0, 5)))
)
def test_stages_never_go_backwards_and_add_up(moves: list[tuple[str, float]]) -> None:
    now = 10.0
    marks = Waterfall(arrival=now)
    marks.attempt(now)
    for move, seconds in moves:
        now += seconds
        match move:
            case "start":
                marks.start(started(seconds), now)
            case "reserve":
                marks.reserve(now)
            case "tokens":
                marks.tokens(1, now)
            case "arrive":
                marks.arrive(now)
            case "attempt":
                marks.attempt(now)
    timings = marks.timings(now)
    stages = [
        timings.queue_s,
        timings.prefill_s,
        timings.reserve_s,
        timings.transfer_s,
        timings.first_decode_s,
    ]
    assert all(stage >= 0 for stage in stages)
    assert timings.ttft_s == pytest.approx(timings.queue_s + timings.prefill_s)
    assert timings.ttft_s <= timings.e2e_s + 1e-9


def test_public_timings_name_no_worker_and_no_reason_of_the_placement() -> None:
    timings = router_pb2.Timings(
        queue_s=0.5,
        prefill_worker="prefill-0",
        decode_worker="decode-1",
        placement="adaptive: TTFT 312 ms",
        moves=[router_pb2.TimingMove(at_s=1.0, worker="decode-2", reason="drain")],
        preemptions=[router_pb2.TimingPreemption(at_s=2.0, worker="decode-2", reason="pages")],
    )
    public = without_workers(timings)
    assert not {"prefill-0", "decode-1", "decode-2", "adaptive"} & set(re.findall(r"[\w-]+", str(public)))
    assert (public.queue_s, public.moves[0].at_s, public.preemptions[0].reason) == (0.5, 1.0, "pages")
    assert timings.prefill_worker == "prefill-0"
