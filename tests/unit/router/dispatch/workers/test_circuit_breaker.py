"""When a worker is trusted."""

from __future__ import annotations

from router.dispatch.workers.liveness import CircuitBreaker, CircuitState


def failing(times: int) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(times):
        breaker.request_failed()
    return breaker


def test_three_consecutive_failures_make_a_worker_suspect_and_no_number_opens_the_circuit() -> None:
    assert failing(2).state is CircuitState.CLOSED
    assert failing(3).state is CircuitState.SUSPECT
    assert failing(100).state is CircuitState.SUSPECT


def test_failures_between_successes_are_the_requests_own() -> None:
    breaker = CircuitBreaker()
    for _ in range(10):
        breaker.request_failed()
        breaker.request_failed()
        breaker.request_done()
    assert breaker.state is CircuitState.CLOSED


def test_a_suspect_worker_that_serves_a_request_is_in_service_again() -> None:
    breaker = failing(3)
    breaker.request_done()
    assert breaker.state is CircuitState.CLOSED


def test_two_probes_that_fail_make_a_worker_bad_and_only_a_probe_makes_it_good() -> None:
    breaker = CircuitBreaker()
    breaker.probe_failed()
    assert breaker.state is CircuitState.SUSPECT
    breaker.probe_failed()
    assert breaker.state is CircuitState.OPEN
    breaker.request_done()  # a request that was under way
    assert breaker.state is CircuitState.OPEN
    breaker.probe_succeeded()
    assert breaker.state is CircuitState.CLOSED
