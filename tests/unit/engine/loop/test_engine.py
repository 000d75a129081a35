"""The engine on a runner whose memory can be read: whatever is scheduled, the tokens are the reference's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from common.kv_groups import KVGroup
from engine.config import Batching
from engine.core.request import Request
from engine.core.sampling_params import FinishReason
from engine.errors import EngineError, QueueFull, UnservableRequest
from engine.loop.engine import Engine
from tests.unit.engine.engines import deliver, make_engine, make_request, run, write
from tests.unit.engine.fake_runner import EOS, VOCAB, reference


def steps_of(engine: Engine) -> list[list[tuple[int, int, int]]]:
    runner: Any = engine.runner
    return runner.steps  # type: ignore[no-any-return]


PROMPTS = [list(range(1, n + 1)) for n in (1, 3, 4, 5, 15, 16, 17, 40)]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("chunk", [4, 16, None])
@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("batching", list(Batching))
def test_every_batch_gives_the_reference(
    overlap: bool, chunk: int | None, page: int, batching: Batching
) -> None:
    engine = make_engine(
        overlap=overlap, chunk_budget=chunk, page_size=page, num_pages=400 // page, batching=batching
    )
    requests = [make_request(i, prompt) for i, prompt in enumerate(PROMPTS)]
    run(engine, *requests)
    assert [r.output for r in requests] == [reference(p, 8) for p in PROMPTS]


def test_a_long_prompt_never_keeps_a_running_decode_from_its_token() -> None:
    engine = make_engine(num_pages=200)
    short = make_request(1, [1, 2, 3], max_tokens=40, ignore_eos=True)
    engine.submit(short)
    engine.step()
    engine.submit(make_request(2, list(range(90)) * 4))
    for expected in range(2, 30):
        engine.step()
        assert len(short.output) == expected


def test_a_long_prompt_does_not_shut_out_a_short_one() -> None:
    engine = make_engine(num_pages=200)
    engine.submit(make_request(1, list(range(90)) * 4))
    engine.step()
    short = make_request(2, [5, 6, 7])
    engine.submit(short)
    engine.step()
    assert short.output


def test_chunks_end_at_page_boundaries() -> None:
    engine = make_engine(chunk_budget=18)
    run(engine, make_request(1, list(range(50)), max_tokens=1), make_request(2, list(range(50, 90))))
    for step in steps_of(engine):
        for request_id, start, length in step:
            if length > 1 and start + length < {1: 50, 2: 40}[request_id]:
                assert (start + length) % 4 == 0


def test_a_repeated_prompt_is_computed_once() -> None:
    engine = make_engine()
    prompt = list(range(30))
    run(engine, make_request(1, prompt))
    again = make_request(2, prompt)
    run(engine, again)
    assert again.num_cached == 28
    assert again.output == reference(prompt, 8)


@pytest.mark.parametrize("batching", list(Batching))
@pytest.mark.parametrize("chunk", [16, 32])
def test_a_step_without_computation_means_that_nothing_is_left(chunk: int, batching: Batching) -> None:
    """Equal prompts find each other's pages up to the last token. A loop that sleeps after an idle step must
    not leave them waiting.
    """
    engine = make_engine(batching=batching, chunk_budget=chunk)
    for id in range(3):
        engine.submit(make_request(id, list(range(17)), max_tokens=1))
    while engine.has_work:
        assert engine.step().num_tokens > 0


@pytest.mark.parametrize("overlap", [False, True])
def test_a_prefix_is_shared_while_it_is_still_being_computed(overlap: bool) -> None:
    engine = make_engine(overlap=overlap)
    prefix = list(range(64))
    requests = [make_request(i, [*prefix, i], max_tokens=2, ignore_eos=True) for i in range(4)]
    run(engine, *requests)
    computed = sum(length for step in steps_of(engine) for _, _, length in step)
    assert computed <= 64 + 4 * 2 + 4 * 4
    assert [r.output for r in requests] == [reference(r.prompt, 2, ignore_eos=True) for r in requests]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_pool_too_small_for_all_preempts_and_still_gives_the_reference(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "engine.sched.output_lengths.OutputLengths.remaining",
        lambda _, requests: np.zeros(len(requests), int),
    )  # answers get longer than thought
    engine = make_engine(num_pages=12, overlap=overlap, radix_cache=False)
    requests = [make_request(i, [i, 2, 3, 4, 5], max_tokens=30, ignore_eos=True) for i in range(4)]
    run(engine, *requests)
    assert engine.stats().preemptions > 0
    assert [r.output for r in requests] == [reference(r.prompt, 30, ignore_eos=True) for r in requests]


def test_a_request_that_fills_the_pool_alone_ends_with_length() -> None:
    engine = make_engine(num_pages=4)
    request = make_request(1, [1, 2, 3], max_tokens=100, ignore_eos=True)
    run(engine, request)
    assert request.finish is FinishReason.LENGTH
    assert request.num_tokens == 16


def test_end_of_sequence_stops_unless_ignored_or_too_early() -> None:
    prompt = next([a, b] for a in range(VOCAB) for b in range(VOCAB) if reference([a, b], 9)[-1] == EOS)
    length = len(reference(prompt, 9))
    stopped, ignored = make_request(1, prompt, 20), make_request(2, prompt, 20, ignore_eos=True)
    later = make_request(3, prompt, 20, min_tokens=length + 1)
    run(make_engine(), stopped, ignored, later)
    assert (stopped.finish, len(stopped.output)) == (FinishReason.STOP, length)
    assert (ignored.finish, len(ignored.output)) == (FinishReason.LENGTH, 20)
    assert len(later.output) > length


def test_what_can_never_run_is_refused_at_once() -> None:
    engine = make_engine(num_pages=4, max_waiting_requests=1)
    for prompt in ([], [VOCAB], [-1], [1] * 16):
        with pytest.raises(UnservableRequest):
            engine.submit(make_request(1, prompt))
    engine.submit(make_request(1, [1]))
    with pytest.raises(UnservableRequest, match="already"):
        engine.submit(make_request(1, [1]))
    with pytest.raises(QueueFull):
        engine.submit(make_request(2, [1]))


def test_a_hook_may_keep_the_pages_of_a_finished_request() -> None:
    class Keep:
        computed: list[tuple[int, int]] = []  # noqa: RUF012

        def on_started(self, requests: list[Request]) -> None:
            pass

        def on_computed(self, request: Request, upto: int) -> None:
            self.computed.append((request.id, upto))

        def on_finished(self, request: Request) -> bool:
            return True

    engine = make_engine(hooks=Keep())
    request = make_request(1, list(range(40)), max_tokens=1)
    engine.submit(request)
    while engine.has_work:
        engine.step()
    assert Keep.computed == [(1, 16), (1, 32), (1, 40)]
    assert len(request.pages) == 10
    assert engine.kv.num_available == 64 - 10
    engine.release(request)
    counts = engine.check_pages()
    assert counts.free + counts.cached == counts.total


@pytest.mark.parametrize("overlap", [False, True])
def test_what_a_failed_request_computed_is_not_used_by_others(overlap: bool) -> None:
    engine = make_engine(overlap=overlap)
    runner: Any = engine.runner
    prompt = list(range(40))
    runner.fails = {1}
    failing, bystander = make_request(1, prompt), make_request(2, [7, 8, 9])
    engine.submit(failing)
    engine.submit(bystander)
    failures = []
    while engine.has_work:
        failures += engine.step().failed
        engine.check_pages()
    assert [request.id for request, _ in failures] == [1]
    assert bystander.output == reference([7, 8, 9], 8)
    again = make_request(3, prompt)
    run(engine, again)
    assert again.num_cached == 0
    assert again.output == reference(prompt, 8)


@pytest.mark.parametrize("batching", list(Batching))
def test_only_prompts_still_to_be_read_make_a_step_with_prompts(batching: Batching) -> None:
    """Which is planned earlier: not for a request that has come with its KV."""
    engine = make_engine(batching=batching)
    arrived, prompt = make_request(1, list(range(9))), make_request(2, list(range(40)))
    reservation = engine.reserve(arrived)
    assert reservation is not None
    deliver(engine, arrived, reservation)
    assert not engine.scheduler.has_prompts
    engine.submit(prompt)
    assert engine.scheduler.has_prompts
    while prompt.num_pending > 1:
        assert engine.scheduler.has_prompts
        engine.step()
    assert not engine.scheduler.has_prompts


def test_a_request_whose_kv_has_arrived_counts_as_running_before_its_first_step() -> None:
    engine = make_engine(max_running_requests=1)
    arrived = make_request(1, list(range(9)))
    reservation = engine.reserve(arrived)
    assert reservation is not None
    deliver(engine, arrived, reservation)
    assert (engine.stats().running, engine.stats().waiting) == (1, 0)
    assert engine.reserve(make_request(2, list(range(9)))) is None


@pytest.mark.parametrize("overlap", [False, True])
def test_kv_of_another_worker_is_decoded_like_local_kv(overlap: bool) -> None:
    engine = make_engine(overlap=overlap)
    prompt = list(range(30))
    run(engine, make_request(1, prompt[:20], ignore_eos=True))
    request = make_request(2, prompt, ignore_eos=True)
    reservation = engine.reserve(request)
    assert reservation is not None
    assert reservation.first_token == 20
    assert engine.check_pages().in_flight == 3
    deliver(engine, request, reservation)
    while engine.has_work:
        engine.step()
        engine.check_pages()
    assert request.output == reference(prompt, 8, ignore_eos=True)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("arrived", [4, 20, 29])
def test_the_rest_of_a_prompt_is_scheduled_like_any_other_behind_kv_of_another_worker(
    overlap: bool, arrived: int
) -> None:
    engine = make_engine(overlap=overlap)
    beside = make_request(1, list(range(30, 90)), max_tokens=30, ignore_eos=True)
    engine.submit(beside)
    for _ in range(6):
        engine.step()
    request = make_request(2, list(range(30)), ignore_eos=True)
    reservation = engine.reserve(request)
    assert reservation is not None
    deliver(engine, request, reservation, upto=arrived)
    shorter = make_request(3, [9, 8, 7], ignore_eos=True)
    engine.submit(shorter)
    while engine.has_work:
        engine.step()
        engine.check_pages()
    for done in (beside, request, shorter):
        assert done.output == reference(done.prompt, done.sampling.max_tokens, ignore_eos=True)
    chunks = [chunk for step in steps_of(engine) for chunk in step if chunk[0] == 2]
    assert chunks[0][1] == arrived, "what has arrived is not computed again"


def test_what_arrives_in_part_is_not_before_prompts_that_came_earlier() -> None:
    engine = make_engine(num_pages=400, max_running_requests=16)
    for number in range(6):
        engine.submit(make_request(number, [number] * 64))
    late = make_request(10, list(range(80)))
    reservation = engine.reserve(late)
    assert reservation is not None
    deliver(engine, late, reservation, upto=4)
    while not late.output:
        engine.step()
    assert all(request.output for request in engine.scheduler.running)


def test_a_quarantined_page_is_not_allocated() -> None:
    engine = make_engine(num_pages=8)
    reservation = engine.reserve(make_request(1, list(range(20))))
    assert reservation is not None
    engine.kv.quarantine(reservation)
    assert engine.check_pages().quarantined == 5
    assert engine.reserve(make_request(2, list(range(20)))) is None
    engine.kv.free_reservation(reservation)
    assert engine.check_pages().free == 8


@pytest.mark.parametrize("quarantined", [False, True])
def test_pages_of_a_failed_handoff_that_have_arrived_are_a_cached_prefix(quarantined: bool) -> None:
    engine = make_engine(num_pages=8)
    prompt = list(range(20))
    request = make_request(1, prompt)
    reservation = engine.reserve(request)
    assert reservation is not None
    write(engine, request, reservation, upto=12)
    if quarantined:
        engine.kv.quarantine(reservation)
    engine.kv.free_reservation(reservation, verified=3)
    assert engine.check_pages().cached == 3
    again = make_request(2, prompt)
    run(engine, again)
    assert again.num_cached == 12
    assert again.output == reference(prompt, len(again.output))


@pytest.mark.parametrize("quarantined", [False, True])
def test_a_prompt_that_has_arrived_for_nothing_and_was_cached_meanwhile_is_cached_once(
    quarantined: bool,
) -> None:
    engine = make_engine(num_pages=16)
    prompt = list(range(20))
    request = make_request(1, prompt)
    reservation = engine.reserve(request)
    assert reservation is not None
    engine.submit(make_request(2, prompt))
    while engine.has_work:
        engine.step()
    write(engine, request, reservation, upto=20)
    if quarantined:
        engine.kv.quarantine(reservation)
    before = engine.check_pages().cached
    engine.kv.free_reservation(reservation, verified=5)
    assert engine.check_pages().cached == before
    assert engine.check_pages().free == 16 - before


def test_pages_that_have_arrived_behind_an_evicted_prefix_are_free() -> None:
    engine = make_engine(num_pages=8)
    run(engine, make_request(1, list(range(8)), max_tokens=1))
    reservation = engine.reserve(make_request(2, list(range(20))))
    assert reservation is not None
    assert reservation.first_token == 8
    engine.kv.quarantine(reservation)
    engine.kv.pool.from_cache(engine.kv.cache.evict(2))
    engine.kv.free_reservation(reservation, verified=2)
    assert engine.check_pages().free == 8


def test_pages_in_quarantine_take_no_place_of_a_running_request() -> None:
    engine = make_engine(num_pages=16, max_running_requests=1)
    given_up = engine.reserve(make_request(1, list(range(20))))
    assert given_up is not None
    assert engine.reserve(make_request(2, list(range(20)))) is None
    engine.kv.quarantine(given_up)
    assert len(engine.kv.reservations.active) == 0
    assert engine.reserve(make_request(3, list(range(20)))) is not None
    assert engine.check_pages().quarantined == 5
    engine.kv.free_reservation(given_up)
    assert len(engine.kv.reservations.active) == 1
    assert engine.check_pages().quarantined == 0


def test_a_pool_without_room_for_a_block_is_refused() -> None:
    groups = (KVGroup((0,)), KVGroup((1,), 8))
    with pytest.raises(EngineError, match=r"a KV pool of 1 pages holds no request: a block of .* takes 2"):
        make_engine(groups=groups, num_pages=1)
