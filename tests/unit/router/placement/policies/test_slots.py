"""A worker computes at most `max_running` requests at a time: what placement and predictions make of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.kv_groups import RequestPages
from router.placement import (
    AdaptivePlacement,
    ClusterModel,
    ClusterView,
    Demand,
    DisaggPlacement,
    LinkView,
    Placement,
    Preference,
    RequestView,
    StepTime,
    Targets,
    WorkerFacts,
    WorkerView,
)
from router.placement.account.load import TaskPhase, WorkerLoad
from router.placement.policies.by_load import prefix_aware
from router.placement.policies.predict import running_answers, slot_wait
from router.placement.policies.prefill_pool import expected_misses
from simulator.simulation import ClusterSpec, Simulation
from simulator.traffic import Arrival
from simulator.worker import WorkerSettings

TARGETS = Targets(0.5, 0.040)
LINK = LinkView(170e9, 0.003)
DEMAND = Demand(requests_per_s=10.0, prompt_tokens=300, attention=5e4, context_tokens=700, output_tokens=500)
REQUEST = RequestView(prompt_tokens=300, expected_output=500, arrived=0.0)


def worker(name: str, answers: int, slots: int | None = 100) -> WorkerView:
    return WorkerView(
        id=name,
        step_time=StepTime(),
        chunk_tokens=2048,
        step_target_s=0.038,
        decodes=answers,
        context_tokens=700 * answers,
        max_running=slots,
        available_pages=50_000,
        total_pages=50_000,
        page_size=16,
    )


def place(*workers: WorkerView) -> Placement:
    view = ClusterView(now=0.0, workers=workers, demand=DEMAND, kv_bytes_per_token=131_072, link=LINK)
    return AdaptivePlacement(TARGETS).place(REQUEST, view)


def test_a_step_decodes_no_more_answers_than_there_are_slots() -> None:
    assert running_answers(worker("a", 150)) == (100, pytest.approx(70_000))
    assert running_answers(worker("a", 99), 1, 300) == (100, pytest.approx(99 * 700 + 300))
    assert running_answers(worker("a", 150, None)) == (150, 105_000)


def test_one_slot_becomes_free_in_the_time_of_an_answer_by_the_number_of_slots() -> None:
    assert slot_wait(worker("a", 99), 0.02, 500) == 0.0
    assert slot_wait(worker("a", 100), 0.02, 500) == pytest.approx(0.1)
    assert slot_wait(worker("a", 119), 0.02, 500) == pytest.approx(2.0)
    assert slot_wait(worker("a", 119, None), 0.02, 500) == 0.0


def test_the_wait_for_a_slot_is_part_of_the_predicted_ttft() -> None:
    free, full = place(worker("a", 60)), place(worker("a", 119))
    predicted = [placement.why.candidates[0].ttft_s for placement in (free, full)]
    assert predicted[0] < 0.1
    assert predicted[1] > 0.5


def test_an_answer_goes_to_a_worker_with_a_slot_even_if_it_decodes_more_slowly() -> None:
    slower = replace(worker("b", 120, 200), step_time=StepTime().scaled(1.2))
    assert place(worker("a", 119), slower).decode_worker == "b"


def test_no_kv_is_sent_to_a_worker_without_a_slot() -> None:
    full, prefilling = worker("a", 100), replace(worker("b", 110), prefers=Preference.PREFILL)
    assert place(full, prefilling).is_local


def test_with_all_slots_taken_a_request_goes_where_one_becomes_free_first() -> None:
    assert place(worker("a", 130), worker("b", 103)).decode_worker == "b"


@pytest.mark.parametrize("phase", [TaskPhase.PREFILL, TaskPhase.INCOMING])
def test_a_request_takes_a_slot_before_it_decodes(phase: TaskPhase) -> None:
    model, load = ClusterModel(kv_bytes_per_token=131_072, link=LINK), WorkerLoad(RequestPages(16))
    model.add(WorkerFacts(id="a", chunk_tokens=2048, total_pages=1000, page_size=16, max_running=1), load)
    (seen,) = model.view(0.0).workers
    assert (seen.max_running, seen.has_slot) == (1, True)
    load.begin(phase, 300, cached=0, arrived_at=0.0, now=0.0)
    (seen,) = model.view(0.0).workers
    assert not seen.has_slot


def test_reserving_a_worker_for_prompts_counts_the_slots_that_are_lost() -> None:
    demand = replace(DEMAND, requests_per_s=20.0)
    for slots, more in ((1000, False), (25, True)):
        reader, *others = (worker(name, 0, slots) for name in "abc")
        without = expected_misses((), (reader, *others), demand, TARGETS)
        assert (expected_misses((reader,), others, demand, TARGETS) > without + 0.05) is more


def test_a_disaggregated_request_waits_for_a_slot_before_its_prompt_is_computed() -> None:
    roles = (Preference.PREFILL, Preference.DECODE)
    spec = ClusterSpec(preferences=roles, settings=(WorkerSettings(max_running=2),) * 2)
    simulation = Simulation(spec, DisaggPlacement(prefix_aware))
    outcomes = simulation.run([Arrival(0.001 * n, 300, 50) for n in range(4)])
    for late, ended in ((outcomes[2], outcomes[0]), (outcomes[3], outcomes[1])):
        assert late.first > ended.last
        assert late.second - late.first < 0.02
