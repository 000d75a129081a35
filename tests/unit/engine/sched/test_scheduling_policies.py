"""Order of admission, choice of preemption, and what requests are told about their waiting."""

from __future__ import annotations

import math
from typing import Any

import pytest

from engine.config import Policy, SchedulerConfig, Victim
from engine.core.request import Request
from engine.core.waits import WaitReason
from engine.errors import DeadlineUnreachable
from engine.sched.presets import Preset
from tests.unit.engine.engines import make_engine, make_request
from tests.unit.engine.sched.planning import Planner, request

PAGE = 16


def planner(policy: Policy, **changes: Any) -> Planner:
    settings = {"chunk_budget": 256, "max_running_requests": 1} | changes
    return Planner(Preset.BATON, policy=policy, **settings)


def order(policy: Policy, requests: list[Request], **changes: Any) -> list[int]:
    """Ids in the order in which requests end that run one by one."""
    planned = planner(policy, **changes)
    planned.submit(*requests)
    planned.chunks(*(r.id for r in requests))
    return planned.ended


def first_preempted(planned: Planner) -> list[Request]:
    return next(preempted for _ in range(200) if (preempted := planned.step().preempted))


def test_larger_priorities_are_admitted_first_and_equals_in_order_of_arrival() -> None:
    requests = [request(id, 40, priority=priority) for id, priority in enumerate((0, 5, 0, 9))]
    assert order(Policy.PRIORITY, requests) == [3, 1, 0, 2]


def test_smaller_priorities_are_admitted_first_if_so_configured() -> None:
    requests = [request(id, 40, priority=priority) for id, priority in enumerate((0, 5, -1))]
    assert order(Policy.PRIORITY, requests, low_priority_values_first=True) == [2, 0, 1]


def test_the_longest_output_is_admitted_first() -> None:
    assert order(Policy.LOF, [request(1, 40, 2), request(2, 40, 5), request(3, 40, 3)]) == [2, 3, 1]


def test_a_random_order_is_that_of_its_seed() -> None:
    def drawn() -> list[int]:
        return order(Policy.RANDOM, [request(id, 40) for id in range(8)])

    assert drawn() == drawn() != list(range(8))


def test_the_earliest_deadline_is_admitted_first_and_requests_without_one_last() -> None:
    requests = [request(1, 40), request(2, 40, ttft_deadline_s=9.0), request(3, 40, ttft_deadline_s=2.0)]
    assert order(Policy.DEADLINE, requests) == [3, 2, 1]


@pytest.mark.parametrize("policy", [Policy.LPM, Policy.DFS_WEIGHT])
def test_requests_with_a_cached_prefix_are_admitted_first(policy: Policy) -> None:
    prefix = [7] * 160
    planned = planner(policy, radix_cache=True)
    planned.submit(request(0, 161, prefix=prefix))
    planned.chunks(0)
    planned.submit(request(1, 200), request(2, 200, prefix=prefix), request(3, 200, prefix=prefix))
    planned.chunks(1, 2, 3)
    assert planned.ended == [0, 2, 3, 1]


def test_the_order_follows_the_cache_while_requests_wait() -> None:
    """Their prefix is computed, and evicted, by others after they came."""
    prefix = [7] * 160
    planned = planner(Policy.LPM, radix_cache=True, num_pages=40, max_running_requests=1)
    planned.submit(
        request(1, 320), request(2, 161, prefix=prefix), request(3, 64), request(4, 161, prefix=prefix)
    )
    planned.chunks(1, 2, 3, 4)
    assert planned.ended == [1, 2, 4, 3]


def test_an_urgent_request_preempts_the_least_urgent_beyond_the_threshold() -> None:
    planned = planner(Policy.PRIORITY, max_running_requests=3, priority_preemption_threshold=2)
    running = [request(id, 20, 50, priority=priority) for id, priority in ((1, 3), (2, 0), (3, 1))]
    planned.submit(*running)
    planned.step()
    planned.submit(request(4, 20, 2, priority=2))
    assert planned.step().preempted == [], "no difference is above 2"
    planned.submit(request(5, 20, 2, priority=4))
    plan = planned.step()
    assert plan.preempted == [running[1]]
    assert running[1].scheduling.preempted_for is WaitReason.POLICY
    assert 5 in [chunk.request.id for chunk in plan.chunks]
    planned.chunks(1, 2, 3, 4, 5)
    assert planned.ended[:2] == [5, 4], "what was preempted waits for all that are more urgent"


def test_nothing_is_preempted_for_a_request_that_would_not_fit_anyway() -> None:
    planned = planner(
        Policy.PRIORITY,
        num_pages=16,
        context=16 * PAGE,
        max_running_requests=3,
        priority_preemption_threshold=0,
    )
    kept = request(1, 10 * PAGE, 5, priority=9)
    planned.submit(kept, request(2, 2 * PAGE, 5, priority=0))
    planned.step()
    planned.submit(request(3, 12 * PAGE, 2, priority=5))
    assert planned.step().preempted == []


def test_requests_with_the_lowest_priority_give_their_pages_to_decodes_first() -> None:
    planned = planner(Policy.PRIORITY, num_pages=8, context=8 * PAGE, max_running_requests=3)
    planned.scheduler._lengths._mean = 1.0  # outputs are expected to be short
    requests = [request(id, 2 * PAGE, 40, priority=priority) for id, priority in ((1, 5), (2, 0), (3, 1))]
    for each in requests:
        each.sampling = type(each.sampling)(max_tokens=40)
    planned.submit(*requests)
    assert first_preempted(planned) == [requests[1]]


def test_sglang_retracts_the_request_with_the_fewest_output_tokens() -> None:
    planned = Planner(Preset.SGLANG, num_pages=120, context=120, chunk_budget=64)
    assert planned.config.victim is Victim.LEAST_OUTPUT
    planned.scheduler._forecaster._ratio.value = 0.0
    first, second = request(1, 30, 80), request(2, 20, 45)
    planned.submit(first)
    planned.step()
    planned.step()
    planned.submit(second)
    assert first_preempted(planned) == [second]


@pytest.mark.parametrize("policy", [Policy.PRIORITY, Policy.LOF, Policy.LPM, Policy.DEADLINE])
def test_no_policy_starves_a_request_that_came_first(policy: Policy) -> None:
    """Others that always go before it keep coming."""
    planned = planner(policy, aging_tokens=2000)
    unlucky = request(0, 100, 1, priority=-1)
    planned.submit(unlucky)
    for id in range(1, 60):
        planned.submit(request(id, 100, 2, priority=1, ttft_deadline_s=5.0))
        planned.submit(request(1000 + id, 100, 2, priority=1, ttft_deadline_s=5.0))
        planned.step()
        if 0 in planned.ended:
            break
    admitted = planned.scheduler.waiting.admitted_tokens
    assert 0 in planned.ended
    assert admitted <= 2000 + 300


def test_an_aged_request_is_not_preempted_again() -> None:
    planned = planner(Policy.PRIORITY, aging_tokens=300, priority_preemption_threshold=0)
    aged = request(0, 100, 50, priority=-5)
    planned.submit(aged)
    for id in range(1, 12):
        planned.submit(request(id, 100, 1, priority=5))
    planned.chunks(0)
    assert planned.ended.index(0) < 6


def test_a_request_that_was_not_admitted_for_its_age_does_not_become_safe_with_it() -> None:
    planned = planner(
        Policy.PRIORITY, aging_tokens=300, max_running_requests=2, priority_preemption_threshold=0
    )
    answer = request(0, 100, 50, priority=-5)
    planned.submit(answer)
    for id in range(1, 7):
        planned.submit(request(id, 100, 1, priority=5))
        planned.step()
    assert planned.scheduler.waiting.is_aged(answer)
    planned.submit(request(7, 100, 5, priority=5), request(8, 100, 5, priority=5))
    assert first_preempted(planned) == [answer]


def test_tenants_take_turns_under_overload_though_one_has_many_requests() -> None:
    planned = planner(Policy.FCFS, tenant_quantum=100)
    planned.submit(*(request(id, 100, tenant="loud") for id in range(20)))
    planned.submit(*(request(100 + id, 100, tenant="quiet") for id in range(3)))
    planned.chunks(100, 101, 102)
    assert planned.ended == [0, 100, 1, 101, 2, 102]


def test_a_tenant_with_long_prompts_gets_as_many_tokens_and_not_as_many_requests() -> None:
    planned = planner(Policy.FCFS, tenant_quantum=100)
    planned.submit(*(request(id, 400, tenant="long") for id in range(5)))
    planned.submit(*(request(100 + id, 100, tenant="short") for id in range(20)))
    planned.chunks(0, 1)
    tokens = sum(100 for id in planned.ended if id >= 100)
    assert 400 <= tokens <= 800


def test_a_tenant_that_was_idle_has_saved_no_turns() -> None:
    planned = planner(Policy.FCFS, tenant_quantum=100)
    planned.submit(*(request(id, 100, tenant="a") for id in range(30)))
    for _ in range(10):
        planned.step()
    begun = len(planned.ended)
    planned.submit(*(request(100 + id, 100, tenant="b") for id in range(8)))
    planned.chunks(105)
    late = planned.ended[begun:]
    assert sum(id < 100 for id in late) >= 5


def test_a_request_that_cannot_meet_its_deadline_is_refused_at_once() -> None:
    planned = planner(Policy.DEADLINE)
    planned.submit(request(1, 1000, ttft_deadline_s=20.0, arrival=0.0))
    late = request(2, 1000, ttft_deadline_s=15.0)
    planned.scheduler.submit(late, now=0.0, prefill_rate=100.0)
    with pytest.raises(DeadlineUnreachable, match=r"expected in 25.00 s"):
        planned.scheduler.submit(request(3, 500, ttft_deadline_s=21.0), now=0.0, prefill_rate=100.0)
    planned.scheduler.submit(request(4, 400, ttft_deadline_s=5.0), now=0.0, prefill_rate=100.0)
    planned.scheduler.submit(request(5, 9000), now=0.0, prefill_rate=100.0)


def test_cached_tokens_do_not_count_against_a_deadline() -> None:
    planned = planner(Policy.DEADLINE, radix_cache=True)
    prompt = range(2000, 3000)
    planned.submit(request(1, 1000, prefix=prompt))
    planned.chunks(1)
    again = request(3, 1040, prefix=prompt, ttft_deadline_s=0.9)

    planned.scheduler.submit(again, now=0.0, prefill_rate=100.0)

    assert again.scheduling.num_expected == 1000 // PAGE * PAGE
    with pytest.raises(DeadlineUnreachable):
        planned.scheduler.submit(request(2, 1040, ttft_deadline_s=0.9), now=0.0, prefill_rate=100.0)


def test_of_requests_with_equal_deadlines_the_later_one_waits_for_the_earlier() -> None:
    planned = planner(Policy.DEADLINE)
    planned.submit(request(1, 1000, ttft_deadline_s=15.0))
    with pytest.raises(DeadlineUnreachable, match=r"expected in 20.00 s"):
        planned.scheduler.submit(request(2, 1000, ttft_deadline_s=15.0), now=0.0, prefill_rate=100.0)
    planned.scheduler.submit(request(3, 400, ttft_deadline_s=15.0), now=0.0, prefill_rate=100.0)
    planned.chunks(1, 3)
    assert planned.ended == [1, 3], "ties go by arrival, so what 1 was told still holds"


def waited(planned: Planner, each: Request, seconds: int) -> dict[WaitReason, float]:
    """Step once a second until it runs."""
    for now in range(1, seconds + 1):
        if each.slot >= 0:
            break
        planned.scheduler.plan(float(now))
        for running in list(planned.scheduler.running):
            if running.output:
                running.output[-1] = 5
    return dict(each.scheduling.waited)


def test_a_wait_for_room_in_a_step_is_recorded_as_budget() -> None:
    planned = planner(Policy.FCFS, max_running_requests=4)
    planned.submit(request(1, 1024))
    second = request(2, 100)
    planned.submit(second)
    assert waited(planned, second, 20) == {WaitReason.BUDGET: 4.0}


def test_a_wait_for_a_slot_or_for_pages_is_recorded() -> None:
    for changes, reason in (
        ({"max_running_requests": 1}, WaitReason.SLOTS),
        ({"max_running_requests": 4, "num_pages": 8, "context": 8 * PAGE}, WaitReason.PAGES),
    ):
        planned = planner(Policy.FCFS, **changes)
        first, second = request(1, 6 * PAGE, 20), request(2, 6 * PAGE, 2)
        planned.submit(first, second)
        for now in range(1, 6):
            planned.scheduler.plan(float(now))
            first.output[-1] = 5
        assert planned.scheduler.waits_for is reason
        planned.scheduler.preempt(first)
        planned.scheduler.waiting.remove(first)
        planned.scheduler.plan(7.0)
        assert second.scheduling.waited == {reason: 6.0}


def test_a_wait_for_requests_admitted_before_is_recorded_as_policy() -> None:
    planned = planner(Policy.PRIORITY)
    first = request(1, 300, priority=0)
    planned.submit(first)
    planned.submit(request(2, 300, priority=1))
    planned.scheduler.plan(1.0)
    planned.scheduler.plan(2.0)
    assert planned.scheduler.waits_for is WaitReason.SLOTS
    planned.scheduler.plan(3.0)
    assert planned.scheduler._queues.waits.mark(3.0)[list(WaitReason).index(WaitReason.POLICY)] == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chunk_budget": 0}, "chunk_budget 0: use 1 or more"),
        ({"schedule_conservativeness": math.inf}, "use a finite number above 0"),
        ({"priority_preemption_threshold": 1}, 'needs policy "priority"'),
        ({"fair_partial_prefills": True}, "needs max_partial_prefills"),
        ({"max_long_partial_prefills": 1}, "needs long_prefill_token_threshold"),
        ({"tenant_quantum": 100, "policy": Policy.LPM}, 'does not go with policy "lpm"'),
        ({"long_prefill_token_threshold": 0}, "use 1 or more"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SchedulerConfig(**settings)


def test_only_steps_that_leave_prompts_waiting_are_used_to_measure_the_rate() -> None:
    now = 0.0
    engine = make_engine(chunk_budget=64, num_pages=400)
    engine._clock = engine._times._clock = lambda: now

    def serve(id: int, tokens: int) -> None:
        nonlocal now
        engine.submit(make_request(id, [id] * tokens, max_tokens=1))
        while engine.has_work:
            now += 0.5
            engine.step()

    for id in range(1, 6):
        serve(id, 20)
    assert engine._times.prefill_rate == math.inf
    serve(9, 640)
    assert engine._times.prefill_rate == pytest.approx(128.0)
    late = make_request(10, [10] * 640, max_tokens=1)
    late.ttft_deadline_s = 4.0
    with pytest.raises(DeadlineUnreachable, match=r"640 prompt tokens at 128 a second"):
        engine.submit(late)


def test_a_plan_names_the_requests_that_run_again_after_they_were_preempted() -> None:
    planned = planner(Policy.FCFS, num_pages=8, context=8 * PAGE, max_running_requests=3)
    planned.scheduler._lengths._mean = 1.0  # outputs are expected to be short
    requests = [request(id, 2 * PAGE, 40) for id in (1, 2, 3)]
    for each in requests:
        each.sampling = type(each.sampling)(max_tokens=40)
    planned.submit(*requests)
    [victim] = first_preempted(planned)
    assert victim.scheduling.preempted_for is WaitReason.PAGES
    plan = next(plan for _ in range(200) if victim in (plan := planned.step()).resumed)
    assert plan.started == []
    assert victim.scheduling.preempted_for is None
