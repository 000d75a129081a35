"""Which workers a request is given, and what placement knows of the demand."""

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
    MixedPlacement,
    NoWorker,
    Placement,
    Preference,
    PromptWork,
    RequestView,
    StepTime,
    Targets,
    WorkerFacts,
    WorkerView,
)
from router.placement.account.load import WorkerLoad
from router.placement.account.room import Room
from router.placement.images import AwaitedRows
from router.placement.policies.by_load import least_loaded, power_of_two, round_robin
from router.placement.policies.estimates import Estimates
from router.placement.policy import Why

TARGETS = Targets(0.5, 0.015)
LINK = LinkView(170e9, 0.003)


def worker(name: str, prefers: Preference = Preference.BOTH) -> WorkerView:
    return WorkerView(
        id=name,
        prefers=prefers,
        step_time=StepTime(),
        chunk_tokens=2048,
        step_target_s=0.014,
        available_pages=50_000,
        total_pages=50_000,
        page_size=16,
    )


P, D = worker("p", Preference.PREFILL), worker("d", Preference.DECODE)


def busy(view: WorkerView, *prompts: int) -> WorkerView:
    return replace(view, prompts=tuple(PromptWork(tokens, 0, 0.0) for tokens in prompts))


def decoding(view: WorkerView, decodes: int) -> WorkerView:
    return replace(view, decodes=decodes, context_tokens=3000 * decodes)


def view(*workers: WorkerView) -> ClusterView:
    return ClusterView(now=0.0, workers=workers, kv_bytes_per_token=131_072, link=LINK)


def request(tokens: int = 2000, **cached: int) -> RequestView:
    return RequestView(prompt_tokens=tokens, expected_output=300, arrived=0.0, cached=cached)


def pair(placement: Placement | None) -> tuple[str, str]:
    assert placement is not None
    return placement.prefill_worker, placement.decode_worker


def with_a_reader() -> AdaptivePlacement:
    """Has reserved "p" for prompts, after a load that asks for it."""
    policy = AdaptivePlacement(TARGETS)
    demand = Demand(
        requests_per_s=7.0, prompt_tokens=2800, attention=7e6, context_tokens=3000, output_tokens=320
    )
    for turn in range(100):
        policy.place(request(), replace(view(P, D), now=float(turn), demand=demand))
    assert policy.prefill_only == {"p"}
    return policy


def test_mixed_gives_one_worker_everything() -> None:
    policy = MixedPlacement(round_robin)
    assert [pair(policy.place(request(), view(P, D))) for _ in range(3)] == [
        ("p", "p"),
        ("d", "d"),
        ("p", "p"),
    ]


def test_disagg_goes_by_preference() -> None:
    policy = DisaggPlacement(least_loaded)
    assert pair(policy.place(request(), view(D, P))) == ("p", "d")


@pytest.mark.parametrize(
    "policy",
    [MixedPlacement(power_of_two), DisaggPlacement(round_robin), AdaptivePlacement(TARGETS)],
)
def test_without_workers_every_policy_says_so(
    policy: MixedPlacement | DisaggPlacement | AdaptivePlacement,
) -> None:
    with pytest.raises(NoWorker):
        policy.place(request(), view())


def test_a_prompt_is_read_where_it_is_cached() -> None:
    placement = with_a_reader().place(request(4000, d=3900), view(P, decoding(D, 10)))
    assert pair(placement) == ("d", "d")


def test_a_long_prompt_does_not_go_where_answers_are_written() -> None:
    placement = with_a_reader().place(request(8000), view(P, decoding(D, 50)))
    assert pair(placement) == ("p", "d")


def test_a_prompt_goes_to_the_decode_worker_when_the_prefill_workers_queue_is_too_long() -> None:
    policy = with_a_reader()
    queue = [3000] * 12
    assert pair(policy.place(request(3500), view(busy(P, *queue), decoding(D, 10)))) == ("d", "d")
    assert pair(policy.place(request(3500), view(P, decoding(D, 10)))) == ("p", "d")


def test_a_worker_without_pages_is_avoided() -> None:
    full = replace(worker("a"), available_pages=10)
    placement = AdaptivePlacement(TARGETS).place(request(), view(full, worker("b")))
    assert placement.decode_worker == "b"


def test_a_conversation_waits_where_its_kv_is_if_pages_are_free_soon() -> None:
    """What it lacks waits for less time than computing all of it takes."""
    full = replace(worker("a"), total_pages=3000, available_pages=20, decodes=19, context_tokens=60_000)
    full = replace(full, room=Room(pages=RequestPages(page_size=16)))
    other = replace(full, id="b", available_pages=300)
    placement = AdaptivePlacement(TARGETS).place(request(3400, a=3000), view(full, other))
    assert pair(placement) == ("a", "a")


def test_the_wait_for_pages_counts_the_requests_that_wait_already() -> None:
    full = replace(worker("a"), available_pages=0, decodes=10, context_tokens=30_000)

    def ttft(starved: int) -> float:
        waiting = replace(full, room=Room(starved=starved))
        return AdaptivePlacement(TARGETS).place(request(), view(waiting)).why.candidates[0].ttft_s

    # 2,000 of 50,000 pages; these are held for 300 tokens.
    tpot = AdaptivePlacement(TARGETS).place(request(), view(full)).why.candidates[0].tpot_s
    assert ttft(4) - ttft(0) == pytest.approx(4 * 2000 / 50_000 * 300 * tpot, rel=0.1)


def test_kv_of_a_conversation_is_copied_only_for_a_gain() -> None:
    """The pairs are equal otherwise, and the decode worker prefers to decode."""
    policy = AdaptivePlacement(TARGETS)
    assert pair(policy.place(request(3000, p=2900), view(P, D))) == ("p", "p")
    assert pair(policy.place(request(3000, p=2900, d=2900), view(P, D))) == ("p", "d")


def test_a_decode_worker_without_room_for_the_kv_gets_the_whole_request() -> None:
    """There it waits without holding pages."""
    starved = replace(decoding(D, 50), room=Room(total_pages=50_000, free_pages=50_000, starved=1))
    placement = with_a_reader().place(request(8000), view(P, starved))
    assert pair(placement) == ("d", "d")
    assert str(placement.why).endswith("; the decode worker has no room for the KV")


def test_the_reason_names_every_candidate_best_first() -> None:
    why = with_a_reader().place(request(), view(P, D)).why
    assert {(c.prefill_worker, c.decode_worker) for c in why.candidates} == {("p", "d"), ("d", "d")}
    assert all(c.ttft_s > 0 and c.tpot_s > 0 for c in why.candidates)


def test_a_slow_worker_gets_less() -> None:
    slow = replace(worker("slow"), step_time=StepTime(step=0.01, weights=0.04, row=200e-6))
    assert pair(AdaptivePlacement(TARGETS).place(request(), view(slow, worker("fast")))) == ("fast", "fast")


def test_among_many_workers_the_idle_one_is_found() -> None:
    crowd = [decoding(busy(worker(f"w{n}"), 4000, 4000), 30) for n in range(200)]
    crowd[137] = worker("idle")
    assert pair(AdaptivePlacement(TARGETS).place(request(), view(*crowd))) == ("idle", "idle")


def test_demand_is_the_rate_of_what_has_to_be_computed() -> None:
    model = ClusterModel(kv_bytes_per_token=1, link=LINK)
    model.add(WorkerFacts(id="p", chunk_tokens=2048, total_pages=1000, page_size=16), WorkerLoad())
    for number in range(400):
        model.placed(request(1600, p=1200), "p", number / 10)
    demand = model.view(40.0).demand
    assert demand.requests_per_s == pytest.approx(10.0, rel=0.05)
    assert demand.prompt_tokens == pytest.approx(400)


def test_prompts_wait_elsewhere_rather_than_slow_decodes_that_are_too_slow_already() -> None:
    """Answers that end make it faster again: none of the others is lost for certain."""
    step_time = StepTime(step=0.5e-3, weights=3.9e-3, context=31e-9)
    targets = Targets(ttft_s=1.0, tpot_s=0.007)
    crowded = replace(D, step_time=step_time, decodes=24, context_tokens=24 * 4300, step_target_s=0.00672)
    reader = replace(busy(P, 4000, 4000, 4000, 4000, 4000), step_time=step_time, step_target_s=0.00672)
    request = RequestView(prompt_tokens=4000, expected_output=300, arrived=0.0)
    seen = view(reader, crowded)
    estimates = Estimates(targets)
    estimates.look(seen.workers)
    elsewhere, here = (
        estimates.pair(request, seen, estimates.prefill(request, seen, first), crowded)
        for first in (reader, crowded)
    )
    assert elsewhere.cost < here.cost - 1.0


def test_a_placement_without_predictions_names_its_policy_and_the_exception() -> None:
    assert str(Why("round-robin")) == "round-robin"
    assert str(Why("round-robin", exception="its worker left")).startswith("round-robin")
    assert str(Why("round-robin", exception="its worker left")).endswith("its worker left")


def test_the_time_to_encode_images_is_a_part_of_the_predicted_prefill() -> None:
    slow, fast = (replace(worker(name), image_token_s=rate) for name, rate in (("a", 2e-3), ("b", 1e-3)))
    there = view(slow, fast)
    estimates = Estimates(TARGETS)
    estimates.look(there.workers)
    plain, with_image = request(), replace(request(a=1600), images=((100, 600), (1000, 2000)))

    def seconds(asked: RequestView, on: WorkerView) -> float:
        return estimates.prefill(asked, there, on).seconds

    assert seconds(with_image, fast) - seconds(plain, fast) == pytest.approx(1.5)
    assert seconds(with_image, slow) - seconds(request(a=1600), slow) == pytest.approx(2.0)
    assert pair(AdaptivePlacement(TARGETS).place(replace(with_image, cached={}), there)) == ("b", "b")


def test_images_that_wait_to_be_encoded_delay_a_prompt() -> None:
    waiting = replace(worker("a"), image_token_s=1e-3, prompts=(PromptWork(100, 0, 0.0, 90),))
    there = view(waiting)
    estimates = Estimates(TARGETS)
    estimates.look(there.workers)
    empty = replace(waiting, prompts=(PromptWork(100, 0, 0.0),))
    others = Estimates(TARGETS)
    others.look([empty])
    later = estimates.prefill(request(8000), there, waiting).seconds
    assert later - others.prefill(request(8000), view(empty), empty).seconds == pytest.approx(0.09)
    assert estimates.wait(waiting, 10) - others.wait(empty, 10) == pytest.approx(0.09)


IMAGES = ((100, 600), (1000, 1500))


@pytest.mark.parametrize(("seconds", "elsewhere"), [(0.2, True), (3.0, False)])
def test_images_are_encoded_elsewhere_if_the_first_token_comes_sooner(
    seconds: float, elsewhere: bool
) -> None:
    there = view(*(replace(worker(name), image_token_s=1e-3) for name in "ab"))
    asked = replace(request(), images=IMAGES)
    assert AdaptivePlacement(TARGETS).encodes_elsewhere(asked, seconds, there) is elsewhere


def test_images_are_encoded_elsewhere_rather_than_beside_answers_that_are_nearly_late() -> None:
    """An image stops the answers of its worker: a later first token costs less."""
    beside = view(*(decoding(replace(worker(name), image_token_s=2e-4), 100) for name in "ab"))
    alone = view(*(replace(worker(name), image_token_s=2e-4) for name in "ab"))
    asked, policy = replace(request(), images=IMAGES), AdaptivePlacement(TARGETS)
    seconds = 0.4
    assert not policy.encodes_elsewhere(asked, seconds, alone)
    assert policy.encodes_elsewhere(asked, seconds, beside)


def test_the_rate_of_others_counts_where_no_image_was_encoded() -> None:
    asked, policy = replace(request(), images=IMAGES), AdaptivePlacement(TARGETS)
    assert not policy.encodes_elsewhere(asked, 1.0, view(worker("a")))
    assert policy.encodes_elsewhere(replace(asked, image_token_s=2e-3), 1.0, view(worker("a")))


def test_only_what_follows_an_awaited_image_waits_for_it() -> None:
    there = view(worker("a"))
    estimates = Estimates(TARGETS)
    estimates.look(there.workers)

    def seconds(*images: tuple[int, int], cached: int = 0) -> float:
        asked = replace(request(8000, a=cached), awaited=AwaitedRows(images, 0.2))
        return estimates.prefill(asked, there, there.workers[0]).seconds

    late, early, cached = seconds((7000, 7900)), seconds((0, 900)), seconds((0, 900), cached=1600)
    assert late < early
    assert cached < early
    assert early == pytest.approx(0.2 + 8000 / estimates.pace(there.workers[0]).prefill_rate)
