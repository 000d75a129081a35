"""When a worker is trusted."""

from __future__ import annotations

from router.workers.circuit_breaker import Health, Trust


def failing(times: int) -> Health:
    health = Health()
    for _ in range(times):
        health.request_failed()
    return health


def test_a_few_failures_in_a_row_make_a_worker_doubtful_and_no_number_makes_it_bad() -> None:
    assert failing(2).trust is Trust.GOOD
    assert failing(3).trust is Trust.DOUBTED
    assert failing(100).trust is Trust.DOUBTED


def test_failures_between_successes_are_the_requests_own() -> None:
    health = Health()
    for _ in range(10):
        health.request_failed()
        health.request_failed()
        health.request_done()
    assert health.trust is Trust.GOOD


def test_a_doubtful_worker_that_serves_a_request_is_good_again() -> None:
    health = failing(3)
    health.request_done()
    assert health.trust is Trust.GOOD


def test_two_canaries_that_fail_make_a_worker_bad_and_only_a_canary_makes_it_good() -> None:
    health = Health()
    health.canary_failed()
    assert health.trust is Trust.DOUBTED
    health.canary_failed()
    assert health.trust is Trust.BAD
    health.request_done()  # a request that was under way
    assert health.trust is Trust.BAD
    health.canary_came_back()
    assert health.trust is Trust.GOOD
