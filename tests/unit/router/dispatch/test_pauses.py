"""Pauses of an answer get one cause: the worker's, the way's, or what happened to the answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.loop.pauses.causes import Cause
from router.command.admin.explain import _PAUSES, explained
from router.dispatch.metrics.recent import Recent
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.dispatch.pauses import CAUSES, NETWORK, ROUTER, UNKNOWN, Interruption, StreamPause
from router.dispatch.waterfall import Waterfall
from router.dispatch.workers.arrivals import ON_TIME, BatchTiming
from rpc.as_json import as_json
from rpc.baton.v1 import worker_pb2

GAP_S = 0.02


def decoding(metrics: RouterMetrics | None = None, tokens: int = 50, gap_s: float = GAP_S) -> Waterfall:
    """With its last token at second 100."""
    marks = Waterfall(arrival=0.0, observer=metrics or RouterMetrics())
    marks.attempt(0.0)
    marks.placed("decode-0", None, "")
    for left in range(tokens - 1, -1, -1):
        marks.tokens(1, 100.0 - gap_s * left)
    return marks


def slow_step(cause: str, seconds: float = 0.12, expected_s: float = GAP_S) -> worker_pb2.SlowStep:
    return worker_pb2.SlowStep(cause=cause, seconds=seconds, expected_s=expected_s, parts={cause: seconds})


def causes(marks: Waterfall) -> list[str]:
    return [pause.cause for pause in marks.timings(200.0).pauses]


@pytest.mark.parametrize("cause", [cause.value for cause in Cause])
def test_a_slow_step_is_the_cause_of_the_pause_that_it_made(cause: str) -> None:
    marks = decoding()
    marks.tokens(1, 100.12, BatchTiming(slow=slow_step(cause), slow_at=100.12))
    assert causes(marks) == [cause]
    assert dict(marks.timings(200.0).pauses[0].parts) == {cause: 0.12}


@pytest.mark.parametrize(
    ("arrival", "cause"),
    [
        (BatchTiming(send_s=0.1), "send"),
        (BatchTiming(loop_s=0.1), ROUTER),
        (BatchTiming(network_s=0.1), NETWORK),
        (BatchTiming(network_s=0.001), UNKNOWN),
        (BatchTiming(network_s=0.1, slow=slow_step("gc"), slow_at=99.0), NETWORK),
        (BatchTiming(loop_s=0.02, slow=slow_step("gc"), slow_at=100.05), "gc"),
        (BatchTiming(send_s=0.1, slow=slow_step("gc", 0.07), slow_at=100.12), "send"),
        (BatchTiming(slow=slow_step("work", 0.12, expected_s=0.11), slow_at=100.12), "work"),
    ],
)
def test_the_largest_part_of_the_way_is_the_cause(arrival: BatchTiming, cause: str) -> None:
    marks = decoding()
    marks.tokens(1, 100.12, arrival)
    assert causes(marks) == [cause]


@pytest.mark.parametrize(
    ("happens", "cause"),
    [
        (lambda marks: marks.attempt(100.01), "retry"),
        (lambda marks: marks.moved("decode-1", "drain", 100.01), "moved"),
        (lambda marks: marks.preempted("decode-0", "pages", 100.01), "preempted"),
        (lambda marks: marks.arrive(100.01), "transfer"),
    ],
)
def test_what_happened_to_the_answer_is_the_cause(happens: Callable[[Waterfall], None], cause: str) -> None:
    marks = decoding()
    happens(marks)
    marks.tokens(1, 100.2)
    marks.tokens(1, 100.4)
    assert causes(marks) == [cause, UNKNOWN], "of one pause alone"


def test_a_transfer_is_not_the_cause_where_something_else_took_most_of_the_pause() -> None:
    for late, cause in ((0.15, ROUTER), (0.05, "transfer")):
        marks = decoding()
        marks.arrive(100.01)
        marks.tokens(1, 100.2, BatchTiming(loop_s=late))
        assert causes(marks) == [cause]


def test_short_gaps_and_usual_ones_are_no_pauses() -> None:
    marks = decoding()
    marks.tokens(1, 100.05)
    assert not causes(marks)
    slow = decoding(gap_s=0.1)
    slow.tokens(1, 100.15)
    assert not causes(slow)
    slow.tokens(1, 100.40)
    assert causes(slow) == [UNKNOWN]


def test_the_second_token_may_take_as_long_as_a_slow_device_does() -> None:
    marks = decoding(tokens=1)
    marks.tokens(1, 100.3)
    assert not causes(marks)
    late = decoding(tokens=1)
    late.tokens(1, 100.3, BatchTiming(slow=slow_step("gc", 0.3), slow_at=100.3))
    assert causes(late) == ["gc"]


def test_pauses_are_counted_by_cause() -> None:
    metrics = RouterMetrics()
    marks = decoding(metrics)
    marks.tokens(1, 100.25, BatchTiming(slow=slow_step("gc", 0.25), slow_at=100.25))
    value = metrics.registry.get_sample_value
    assert value("baton_pauses_total", {"cause": "gc"}) == 1
    assert value("baton_pause_seconds_total", {"cause": "gc"}) == pytest.approx(0.25)
    for cause in CAUSES:
        assert value("baton_pauses_total", {"cause": cause}) is not None


def test_answers_that_waited_for_the_same_batch_share_a_pause() -> None:
    recent = Recent()
    for seconds, worker in ((0.1, "decode-0"), (0.12, "decode-0"), (0.1, "decode-1")):
        recent.paused(StreamPause(100.0, seconds, worker, "gc", {}))
    recent.paused(StreamPause(101.0, 0.1, "decode-1", "gc", {}))
    assert [(shared.answers, shared.seconds) for shared in recent.pauses] == [(2, 0.12), (1, 0.1), (1, 0.1)]


def test_an_answer_keeps_its_first_pauses_only() -> None:
    marks = decoding()
    for second in range(101, 200):
        marks.tokens(1, second)
    assert len(causes(marks)) == 32


def test_explain_shows_each_pause_with_its_parts() -> None:
    marks = decoding()
    step = worker_pb2.SlowStep(cause="gc", seconds=0.12, expected_s=0.02, parts={"gc": 0.1, "device": 0.02})
    marks.tokens(1, 100.12, BatchTiming(slow=step, slow_at=100.12))
    completion = as_json(marks.timings(101.0)) | {"finish": "stop", "output_tokens": 51}
    request = {
        "request": "r", "client_request": "", "outcome": "ok", "message": "", "seconds": 101.0,
        "priority": 0, "client": "c",
        "prompt_tokens": 1, "cached_tokens": 0, "completions": [completion],
    }  # fmt: skip
    assert (
        "  paused for 120.0 ms after 100.00 s, by decode-0: Python's garbage collector ran on the worker"
        " (gc 100.0 ms, device 20.0 ms)"
    ) in [*explained(request)]


def test_every_cause_is_explained() -> None:
    assert set(_PAUSES) == set(CAUSES)
    assert {interruption.value for interruption in Interruption} <= set(CAUSES)
    assert ON_TIME.slow is None
