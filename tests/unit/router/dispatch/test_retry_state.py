"""Retries of a sequence, and poison requests."""

from __future__ import annotations

import pytest

from router.dispatch.admission.poison_requests import PoisonRequests
from router.dispatch.failures import AttemptFailed, RetryState, failure_of, loss_of
from router.dispatch.workers.events import Loss, WorkerLost
from router.errors import Internal, Unavailable
from rpc.baton.v1 import sampling_pb2, worker_pb2


def lost(worker: str, *, is_running: bool = True, how: Loss = Loss.BROKEN) -> AttemptFailed:
    return loss_of(WorkerLost("the connection was lost", how), worker, is_running=is_running)


def failed(worker: str = "decode-0") -> AttemptFailed:
    return AttemptFailed("no", worker, Unavailable("told to the client"))


def test_the_client_gets_the_last_failure_after_all_attempts() -> None:
    retries = RetryState("id", 3)
    assert retries.failed(failed("decode-0"), 0) is None
    assert retries.failed(failed("decode-1"), 0) is None
    assert retries.avoid == {"decode-0", "decode-1"}
    verdict = retries.failed(failed(), 0)
    assert verdict is not None
    assert verdict.message == "told to the client"


def test_a_sequence_that_crashes_two_workers_in_a_row_is_not_retried() -> None:
    retries = RetryState("c0ffee", 10)
    assert retries.failed(lost("decode-0"), 5) is None
    verdict = retries.failed(lost("decode-1"), 6)
    assert isinstance(verdict, Internal)
    assert "c0ffee" in verdict.message
    assert "decode" not in verdict.message
    assert retries.is_poison


def test_a_failure_of_another_kind_does_not_reset_the_crash_count() -> None:
    retries = RetryState("id", 10)
    assert retries.failed(lost("decode-0"), 0) is None
    assert retries.failed(failed("decode-2"), 0) is None
    assert isinstance(retries.failed(lost("decode-1"), 0), Internal)


def test_enough_new_tokens_after_a_crash_reset_the_count() -> None:
    retries = RetryState("id", 10)
    for tokens in (0, 8, 16, 24):
        assert retries.failed(lost("decode-0"), tokens) is None
    assert not retries.is_poison


def test_a_first_crash_late_in_an_answer_counts_as_one() -> None:
    retries = RetryState("id", 10)
    assert retries.failed(lost("decode-0"), 500) is None
    assert isinstance(retries.failed(lost("decode-1"), 501), Internal)


def test_a_crash_while_the_sequence_was_queued_does_not_count() -> None:
    retries = RetryState("id", 10)
    for _ in range(5):
        assert retries.failed(lost("decode-0", is_running=False), 0) is None


def test_silent_and_drained_workers_do_not_count_as_crashes() -> None:
    retries = RetryState("id", 10)
    for how in (Loss.SILENT, Loss.PLANNED, Loss.SILENT, Loss.PLANNED):
        assert retries.failed(lost("decode-0", how=how), 0) is None


def test_a_drain_costs_no_attempt() -> None:
    retries = RetryState("id", 1)
    for _ in range(5):
        assert retries.failed(lost("decode-0", how=Loss.PLANNED), 0) is None


def test_a_router_that_was_late_costs_no_attempt_and_blames_nobody() -> None:
    retries = RetryState("id", 1)
    for _ in range(5):
        assert retries.failed(lost("decode-0", how=Loss.ROUTER_LATE), 0) is None
    assert not retries.is_poison
    assert not retries.avoid


def test_a_handoff_that_failed_while_the_router_was_late_costs_no_attempt() -> None:
    retries = RetryState("id", 1)
    for code in (worker_pb2.FAILURE_CODE_HANDOFF, worker_pb2.FAILURE_CODE_SENDER):
        failure = failure_of(worker_pb2.Failed(code=code), "decode-0", router_late=True)
        assert isinstance(failure, AttemptFailed)
        assert retries.failed(failure, 0) is None
    assert not retries.avoid


def test_pixels_that_were_not_sent_are_sent_to_any_worker() -> None:
    retries = RetryState("id", 2)
    failure = failure_of(worker_pb2.Failed(code=worker_pb2.FAILURE_CODE_MEDIA), "decode-0")
    assert isinstance(failure, AttemptFailed)
    assert retries.failed(failure, 0) is None
    assert not retries.avoid


def test_progress_gives_all_attempts_back() -> None:
    retries = RetryState("id", 2)
    for tokens in (0, 8, 100, 1000):
        assert retries.failed(failed("decode-0"), tokens) is None
        assert retries.avoid == {"decode-0"}
        assert retries.pause_s == 0.05
    assert retries.failed(failed("decode-1"), 1007) is not None


def test_pauses_grow_while_there_is_no_progress() -> None:
    retries = RetryState("id", 10)
    pauses = []
    for _ in range(5):
        retries.failed(failed(), 0)
        pauses.append(retries.pause_s)
    assert pauses == pytest.approx([0.05, 0.2, 0.8, 2.0, 2.0])


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def sampling(seed: int = 1, max_tokens: int = 5) -> sampling_pb2.SamplingParams:
    return sampling_pb2.SamplingParams(seed=seed, max_tokens=max_tokens)


def test_a_poison_request_is_found_by_prompt_and_parameters_whatever_its_seed() -> None:
    poison_requests = PoisonRequests(Clock())
    assert poison_requests.find([1, 2], sampling()) is None
    poison_requests.add("id", [1, 2], sampling(seed=1))
    assert poison_requests.find((1, 2), sampling(seed=2)) == "id"
    assert poison_requests.find([1, 2, 3], sampling()) is None
    assert poison_requests.find([1, -2], sampling()) is None, "an image in the same place"
    assert poison_requests.find([1, 2], sampling(max_tokens=6)) is None


def test_a_poison_request_is_forgotten_after_a_minute() -> None:
    clock = Clock()
    poison_requests = PoisonRequests(clock)
    poison_requests.add("one", [1], sampling())
    clock.now = 30.0
    poison_requests.add("two", [2], sampling())
    clock.now = 60.0
    assert poison_requests.find([1], sampling()) is None
    assert poison_requests.find([2], sampling()) == "two"
    clock.now = 90.0
    assert poison_requests.find([2], sampling()) is None


def test_the_number_of_remembered_poison_requests_is_bounded() -> None:
    poison_requests = PoisonRequests(Clock())
    for i in range(300):
        poison_requests.add(str(i), [i], sampling())
    assert poison_requests.find([0], sampling()) is None
    assert poison_requests.find([299], sampling()) == "299"
