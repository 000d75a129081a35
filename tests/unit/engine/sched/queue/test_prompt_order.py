"""In which order prompts are admitted and computed, and who waits for whom."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import Policy, SchedulerConfig
from engine.core.plan import StepPlan
from engine.core.request import Request
from engine.core.sampling_params import FinishReason, SamplingParams
from engine.kv.manager.kv_manager import KVManager
from engine.kv.manager.reservations import Reservation
from engine.sched.scheduler import Scheduler

PAGE = 16
BUDGET = 256
PLENTY = 1 << 14


def make_scheduler(
    *,
    budget: int = BUDGET,
    num_pages: int = PLENTY,
    max_running: int = 64,
    patience: float = 4.0,
    policy: Policy = Policy.SHORTEST,
    longest_chunk: int | None = None,
    radix_cache: bool = False,
) -> Scheduler:
    config = SchedulerConfig(
        chunk_budget=budget,
        max_running_requests=max_running,
        prompt_patience=patience,
        policy=policy,
        long_prefill_token_threshold=longest_chunk,
    )
    kv = KVManager(num_pages, PAGE, radix_cache=radix_cache)
    return Scheduler(config, kv, context=num_pages * PAGE)


def prompt(id: int, tokens: int, max_tokens: int = 1) -> Request:
    return Request(
        id=id, prompt=[id] * tokens, sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    )


def step(scheduler: Scheduler) -> StepPlan:
    """Plan a step and complete it; a prompt that ends is answered and gone."""
    plan = scheduler.plan()
    for chunk in plan.chunks:
        scheduler.complete(chunk)
        if chunk.output_index is not None:
            chunk.request.output[chunk.output_index] = 5
    return plan


def read_all(scheduler: Scheduler) -> list[int]:
    """Ids in the order in which prompts end."""
    ended = []
    while scheduler.num_waiting or scheduler.running:
        for chunk in step(scheduler).chunks:
            if chunk.samples:
                ended.append(chunk.request.id)
                leave(scheduler, chunk.request)
    return ended


def leave(scheduler: Scheduler, request: Request) -> None:
    scheduler.remove(request, FinishReason.LENGTH)
    scheduler.kv.release(request)


def lend(scheduler: Scheduler, request: Request) -> Reservation:
    reservation = scheduler.kv.reserve(request, headroom=0)
    assert reservation is not None
    return reservation


def arrive(scheduler: Scheduler, reservation: Reservation) -> Request:
    request = reservation.request
    scheduler.kv.reservations.arrived(reservation)
    request.output.append(5)
    request.num_computed = request.num_tokens - 1
    scheduler.add_remote(request)
    return request


@pytest.mark.parametrize("policy", Policy)
def test_a_request_whose_kv_is_here_decodes_though_prompts_fill_every_step(policy: Policy) -> None:
    scheduler = make_scheduler(policy=policy)
    reservation = lend(scheduler, prompt(100, 40, max_tokens=9))
    for id in range(20):
        scheduler.submit(prompt(id, 10 * BUDGET))
    step(scheduler)
    arrived = arrive(scheduler, reservation)
    assert arrived in [chunk.request for chunk in step(scheduler).chunks]


def test_adopted_requests_take_free_slots_in_order_and_before_prompts() -> None:
    scheduler = make_scheduler(max_running=1)
    first, second = (lend(scheduler, prompt(id, 40, max_tokens=2)) for id in (1, 2))
    scheduler.submit(prompt(3, 40))
    arrive(scheduler, first)
    arrive(scheduler, second)
    assert scheduler.num_waiting == 3
    assert read_all(scheduler) == [1, 2, 3]


def test_an_adopted_request_that_waits_for_a_slot_can_be_removed() -> None:
    scheduler = make_scheduler(max_running=1)
    scheduler.submit(prompt(1, 40, max_tokens=100))
    step(scheduler)
    waiting = arrive(scheduler, lend(scheduler, prompt(2, 40, max_tokens=2)))
    step(scheduler)
    leave(scheduler, waiting)
    assert scheduler.num_waiting == 0


def test_a_short_prompt_passes_long_ones_that_came_before_it() -> None:
    scheduler = make_scheduler(patience=64.0)
    for id in range(12):
        scheduler.submit(prompt(id, 40 * BUDGET))
    step(scheduler)
    scheduler.submit(prompt(100, 200))
    assert [chunk.request.id for chunk in step(scheduler).chunks if chunk.samples] == [100]


def test_the_shortest_is_read_first_and_equals_in_order_of_arrival() -> None:
    scheduler = make_scheduler(patience=1e6)
    for id, tokens in enumerate((3000, 1000, 2000, 1000)):
        scheduler.submit(prompt(id, tokens))
    assert read_all(scheduler) == [1, 3, 2, 0]


def test_first_come_first_served_admits_in_order_of_arrival() -> None:
    scheduler = make_scheduler(policy=Policy.FCFS, max_running=1)
    for id, tokens in enumerate((3000, 1000, 2000)):
        scheduler.submit(prompt(id, tokens))
    assert read_all(scheduler) == [0, 1, 2]


def test_prompts_that_get_nothing_of_a_step_hold_no_pages() -> None:
    scheduler = make_scheduler()
    for id in range(10):
        scheduler.submit(prompt(id, 2 * BUDGET))
    step(scheduler)
    assert len(scheduler.running) == 1
    assert scheduler.kv.pool.counts().held == 2 * BUDGET // PAGE


def test_a_step_is_filled_though_each_prompt_may_have_only_a_part_of_it() -> None:
    scheduler = make_scheduler(longest_chunk=BUDGET // 4)
    for id in range(10):
        scheduler.submit(prompt(id, 2 * BUDGET))
    assert step(scheduler).num_tokens == BUDGET


def test_a_preempted_request_goes_first() -> None:
    scheduler = make_scheduler(num_pages=8)
    first, last = prompt(1, 3 * PAGE, max_tokens=60), prompt(2, 4 * PAGE - 1, max_tokens=60)
    scheduler.submit(first)
    step(scheduler)
    scheduler._lengths._mean = 0.0  # answers are expected to be short, so both are admitted
    first.sampling = last.sampling = SamplingParams(max_tokens=60)
    scheduler.submit(last)
    while not (preempted := step(scheduler).preempted):
        pass
    assert preempted == [last]
    scheduler.submit(prompt(3, PAGE))
    assert scheduler.wants_pages
    assert scheduler.waiting[0] is last
    leave(scheduler, first)
    assert step(scheduler).chunks[0].request is last
    assert not scheduler.wants_pages


def test_pages_are_wanted_only_while_a_request_waits_for_them() -> None:
    scheduler = make_scheduler(num_pages=40)
    scheduler.submit(prompt(1, 20 * PAGE))
    scheduler.submit(prompt(2, 21 * PAGE))
    step(scheduler)
    assert scheduler.waiting, "the first fills the step"
    assert not scheduler.wants_pages
    assert not scheduler.is_crowded
    step(scheduler)
    assert scheduler.wants_pages
    assert scheduler.is_crowded
    leave(scheduler, scheduler.waiting[0])
    assert not scheduler.wants_pages


def test_pages_that_kv_on_its_way_will_take_are_left_to_it() -> None:
    scheduler = make_scheduler(num_pages=20)
    lend(scheduler, prompt(1, 4 * PAGE, max_tokens=8 * PAGE))
    scheduler.submit(prompt(2, 10 * PAGE, max_tokens=4 * PAGE))
    step(scheduler)
    assert scheduler.wants_pages, "20 pages hold both prompts, and not both answers"


def test_what_is_cached_does_not_count_as_length() -> None:
    scheduler = make_scheduler(radix_cache=True, patience=1e6)
    scheduler.submit(prompt(1, 20 * BUDGET))
    while not any(chunk.samples for chunk in step(scheduler).chunks):
        pass
    leave(scheduler, scheduler.running[0])
    scheduler.submit(prompt(2, 10 * BUDGET))
    step(scheduler)
    scheduler.submit(prompt(3, 2 * BUDGET))
    again = Request(id=4, prompt=[1] * (20 * BUDGET) + [7] * 10, sampling=SamplingParams(max_tokens=1))
    scheduler.submit(again)
    assert [chunk.request.id for chunk in step(scheduler).chunks if chunk.samples] == [4]
    assert again.num_cached == 20 * BUDGET


@pytest.mark.parametrize("patience", [0.0, -1.0, math.inf, math.nan])
def test_a_patience_that_orders_nothing_is_refused(patience: float) -> None:
    with pytest.raises(ValueError, match="use a finite number above 0"):
        make_scheduler(patience=patience)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(2, 3000), st.integers(0, 3)), min_size=2, max_size=40),
    st.sampled_from([0.5, 2.0, 8.0]),
    st.integers(200, 1000),
)
def test_a_prompt_is_overtaken_by_no_more_tokens_than_its_patience_allows(
    arrivals: list[tuple[int, int]], patience: float, num_pages: int
) -> None:
    """However fast they come, and however few pages there are. `arrivals`: (tokens, steps until then)."""
    scheduler = make_scheduler(patience=patience, num_pages=num_pages)
    requests = [prompt(id, tokens) for id, (tokens, _) in enumerate(arrivals)]
    overtaken = [0] * len(requests)
    coming = iter(zip(requests, (steps for _, steps in arrivals), strict=True))
    here: list[Request] = []
    left = 0
    upcoming = next(coming, None)
    while upcoming is not None or scheduler.num_waiting or scheduler.running:
        while upcoming is not None and left == 0:
            scheduler.submit(upcoming[0])
            here.append(upcoming[0])
            upcoming = next(coming, None)
            left = upcoming[1] if upcoming is not None else 0
        left = max(0, left - 1)
        for chunk in step(scheduler).chunks:
            for other in here:
                if other.id < chunk.request.id:
                    overtaken[other.id] += chunk.length
            if chunk.samples:
                leave(scheduler, chunk.request)
                here.remove(chunk.request)
    for request, tokens in zip(requests, overtaken, strict=True):
        # Besides those that passed it: what a step had left for others when it took all it could.
        spare = BUDGET * (len(request.prompt) // (BUDGET - PAGE) + 2)
        assert tokens <= patience * len(request.prompt) + spare
