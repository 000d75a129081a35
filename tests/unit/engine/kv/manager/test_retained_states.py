"""Retention where models need more than pages: checkpoints of states, in the pool and on tiers."""

from __future__ import annotations

from engine.core.request import Request
from engine.core.retention import Retention
from engine.loop.engine import Engine
from tests.unit.engine.engines import make_engine, make_request, run
from tests.unit.engine.kv.tiers.test_groups_on_tiers import WINDOW
from tests.unit.engine.kv.tiers.tiered import Tiered

SESSION = [7] * 40


def retaining(id: int, prompt: list[int]) -> Request:
    request = make_request(id, prompt, 2, ignore_eos=True)
    request.retention = Retention("session", 86400.0)
    return request


def engine_with_states(slots: int) -> Engine:
    engine = make_engine(num_pages=200, chunk_budget=64, num_state_slots=slots, retained_kv_share=0.5)
    engine.kv.cache.keep_journal()
    return engine


def test_the_checkpoint_of_a_retained_session_outlives_those_of_others() -> None:
    engine = engine_with_states(6)
    first = retaining(1, SESSION)
    run(engine, first)
    for number in range(8):
        run(engine, make_request(2 + number, [number + 10, 1, 2, 3, 4, 5], 2, ignore_eos=True))
    turn = retaining(99, [*SESSION, *first.output, 9])
    run(engine, turn)
    assert turn.num_cached == 36


def test_a_request_gets_a_slot_though_all_others_have_retained_checkpoints() -> None:
    engine = engine_with_states(3)
    for number, prompt in enumerate([SESSION, [8] * 40]):
        run(engine, retaining(number, prompt))
    other = make_request(3, [5] * 40, 2, ignore_eos=True)
    run(engine, other)
    assert other.finish is not None
    again = make_request(4, [5] * 40, 2, ignore_eos=True)
    run(engine, again)
    assert again.num_cached == 0, "no checkpoint was saved at the cost of a retained one"
    run(engine, turn := retaining(5, [*SESSION, 9]))
    assert turn.num_cached == 36


def test_copies_of_states_and_filled_in_window_pages_have_the_hash_of_their_block() -> None:
    for tiered in (
        Tiered(num_state_slots=6, num_pages=40),
        Tiered(groups=WINDOW, num_pages=40),
    ):
        kv = tiered.engine.kv
        document = list(range(1, 29))
        tiered.answer(make_request(1, document, 2))
        tiered.answer(make_request(2, [*document[:18], 90, 91], 2))
        blocks = set(kv.cache.blocks())
        hashes = {tiered.tiers.host.hash_of(key) for key in tiered.tiers.host}
        assert hashes
        assert hashes <= blocks
