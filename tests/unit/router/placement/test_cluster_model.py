"""What placement believes of workers, demand and answers, after what it was told."""

from __future__ import annotations

import pytest

from common.kv_groups import RequestPages
from router.placement.account.load import TaskPhase, WorkerLoad
from router.placement.cluster_model import ClusterModel, WorkerFacts
from router.placement.step_time import NO_DRAFTS, Drafting, StepTime, StepWork
from router.placement.view import LinkView, Preference, RequestView, WorkerView

LINK = LinkView(1e9, 1e-3)
PAGE = 16


def model_of(*names: str) -> ClusterModel:
    model = ClusterModel(kv_bytes_per_token=1000, link=LINK)
    for name in names:
        facts = WorkerFacts(id=name, chunk_tokens=512, total_pages=100, page_size=PAGE)
        model.add(facts, WorkerLoad(RequestPages(PAGE)))
    return model


def request(prompt_tokens: int, **cached: int) -> RequestView:
    return RequestView(prompt_tokens=prompt_tokens, expected_output=10, arrived=0.0, cached=cached)


def views(model: ClusterModel, now: float = 0.0) -> dict[str, WorkerView]:
    return {view.id: view for view in model.view(now).workers}


def test_a_view_is_kept_until_something_of_its_worker_changes() -> None:
    model = model_of("a", "b")
    before = views(model)
    assert views(model)["a"] is before["a"]
    model.prefers("a", Preference.DECODE)
    after = views(model)
    assert after["a"].prefers is Preference.DECODE
    assert after["b"] is before["b"]


def test_a_step_changes_what_is_believed_of_its_worker() -> None:
    model = model_of("a")
    work = StepWork(prompt_tokens=2048, attention=StepWork.attention_of(0, 2048))
    slow = 20 * StepTime().seconds(work)
    before = views(model)["a"].step_time.seconds(work)
    for _ in range(100):
        model.stepped("a", work, slow)
    assert before < 0.2 * slow
    assert views(model)["a"].step_time.seconds(work) == pytest.approx(slow, rel=0.1)


def test_what_a_step_verifies_and_yields_is_believed_of_its_worker_alone() -> None:
    model = model_of("a", "b")
    for _ in range(10):
        model.stepped("a", StepWork(decodes=20, context_tokens=20_000), 5e-3, Drafting(rows=5, tokens=3))
    there = views(model)
    assert there["a"].drafting == Drafting(pytest.approx(5), pytest.approx(3))
    assert there["b"].drafting == NO_DRAFTS
    for _ in range(200):
        model.stepped("a", StepWork(decodes=4, context_tokens=4_000), 4e-3)
    assert views(model)["a"].drafting.rows == pytest.approx(1.0, abs=1e-2)


def test_reports_of_a_worker_that_is_gone_are_dropped() -> None:
    model = model_of("a")
    model.remove("a")
    model.stepped("a", StepWork(decodes=1), 1.0)
    model.prefers("a", Preference.DECODE)
    assert not model.view(0.0).workers


def test_demand_counts_what_is_left_to_compute() -> None:
    model = model_of("a")
    assert not model.view(0.0).demand.requests_per_s
    for number in range(50):
        model.placed(request(100, a=40), "a", 0.1 * number)
    demand = model.view(5.0).demand
    assert demand.prompt_tokens == pytest.approx(100 - 2 * PAGE)
    assert demand.attention == pytest.approx(StepWork.attention_of(2 * PAGE, 100 - 2 * PAGE))
    assert demand.context_tokens == pytest.approx(100 + demand.output_tokens / 2)


def test_answers_are_expected_to_be_as_long_as_those_before_and_never_longer_than_allowed() -> None:
    model = model_of("a")
    first = model.expected_output(100_000)
    for _ in range(500):
        model.completed(2 * first)
    assert model.expected_output(100_000) == pytest.approx(2 * first, rel=0.01)
    assert model.expected_output(7) == 7
    for _ in range(1000):
        model.completed(0)
    assert model.expected_output(100) == 1


def test_a_worker_that_has_encoded_nothing_is_as_fast_as_the_others() -> None:
    model = model_of("a", "b")
    assert views(model)["a"].image_token_s == 0
    model.encoded("a", 100, 0.5)
    model.prefers("b", Preference.DECODE)
    assert views(model)["a"].image_token_s == views(model)["b"].image_token_s == pytest.approx(0.005)
    model.encoded("b", 100, 0.1)
    there = views(model)
    assert there["b"].image_token_s == pytest.approx(0.001)
    assert there["a"].image_token_s == pytest.approx(0.005)


def test_images_wait_to_be_encoded_until_they_are_computed() -> None:
    model = ClusterModel(kv_bytes_per_token=1000, link=LINK)
    load = WorkerLoad(RequestPages(PAGE))
    model.add(WorkerFacts(id="a", chunk_tokens=512, total_pages=100, page_size=PAGE), load)
    model.encoded("a", 10, 0.1)
    images = [(20, 60), (70, 100)]
    task = load.begin(TaskPhase.PREFILL, 200, cached=0, arrived_at=0.0, now=0.0, images=images)
    waiting = []
    for computed in (10, 60, 100):
        task.progressed(computed)
        waiting.append(views(model)["a"].encode_s)
    assert waiting == pytest.approx([0.7, 0.3, 0.0])
