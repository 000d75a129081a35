"""What a request finds on tiers, through an engine whose KV can be read."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from engine.config import SpeculationConfig
from engine.kv.cache.journal import CacheChange
from engine.kv.tiers.jobs import Demote, Load
from engine.kv.tiers.stats import Fault, Tier
from router.placement.account.cached_prefixes import CachedPrefixes
from rpc.baton.v1 import worker_pb2
from tests.oracle import Oracle, speculate
from tests.unit.engine.engines import make_request
from tests.unit.engine.fake_runner import VOCAB, reference
from tests.unit.engine.kv.tiers.tiered import Tiered

FIRST = list(range(1, 25))
"""Six pages, as many as a pool of eight can cache beside the next prompt's only for a while."""
OTHER = list(range(40, 64))


def test_a_prefix_that_was_evicted_comes_up_from_host_memory() -> None:
    tiered = Tiered()
    tiered.answer(make_request(1, FIRST, 2))
    tiered.answer(make_request(2, OTHER, 2))
    again = make_request(3, [*FIRST, 90], 2)
    tiered.answer(again)
    assert again.num_cached == len(FIRST)
    assert tiered.promoted(again)[Tier.HOST] == 4 * tiered.tiers.counts.promoted[Tier.HOST] > 0
    assert tiered.tiers.counts.dropped == 0


def test_a_prefix_that_left_host_memory_comes_up_from_disk() -> None:
    tiered = Tiered(host_slots=8, disk_files=100)
    tiered.answer(make_request(1, FIRST, 2))
    for number in range(2, 6):
        tiered.answer(make_request(number, [token + number for token in OTHER], 2))
    again = make_request(9, [*FIRST, 90], 2)
    tiered.answer(again)
    assert again.num_cached == len(FIRST)
    assert tiered.tiers.counts.promoted[Tier.DISK] > 0


def test_a_bit_flip_in_host_memory_is_computed_again() -> None:
    tiered = Tiered()
    tiered.answer(make_request(1, FIRST, 2))
    tiered.answer(make_request(2, OTHER, 2))
    for page in tiered.copier.slots.values():
        page[0] ^= 1
    again = make_request(3, [*FIRST, 90], 2)
    tiered.answer(again)  # with the reference's tokens
    assert tiered.tiers.counts.faults[Fault.DIGEST] > 0


def test_a_lost_file_is_a_miss_and_is_counted() -> None:
    tiered = Tiered(host_slots=8, disk_files=100)
    tiered.answer(make_request(1, FIRST, 2))
    for number in range(2, 6):
        tiered.answer(make_request(number, [token + number for token in OTHER], 2))
    tiered.copier.files.clear()
    again = make_request(9, [*FIRST, 90], 2)
    tiered.answer(again)
    assert tiered.tiers.counts.faults[Fault.LOAD] > 0


def test_other_requests_pass_one_that_waits_for_a_promotion() -> None:
    tiered = Tiered(num_pages=16)
    tiered.answer(make_request(1, FIRST, 2))
    for number in range(2, 5):
        tiered.answer(make_request(number, [token + number for token in OTHER], 2))
    waiting = make_request(8, [*FIRST, 90], 2)
    passing = make_request(9, [5, 5, 5], 2)
    tiered.engine.submit(waiting)
    tiered.engine.submit(passing)
    for _ in range(6):
        tiered.engine.step()  # no copy makes progress
    assert passing.finish is not None
    assert waiting in list(tiered.engine.scheduler.waiting)
    tiered.copier.work(disk=False)
    while tiered.engine.has_work:
        tiered.engine.step()
    assert waiting.num_cached == len(FIRST)
    assert waiting.output == reference(waiting.prompt, 2)


def test_kv_of_several_requests_comes_up_in_turn_where_the_pool_has_room_for_one() -> None:
    tiered = Tiered()
    tiered.answer(make_request(1, FIRST, 2))
    tiered.answer(make_request(2, OTHER, 2))
    tiered.answer(make_request(3, [7] * 24, 2))
    first, second = make_request(8, [*FIRST, 90], 2), make_request(9, [*OTHER, 90], 2)
    tiered.engine.submit(first)
    tiered.answer(second)
    assert (first.num_cached, second.num_cached) == (len(FIRST), len(OTHER))


def test_a_request_computes_what_a_slow_disk_does_not_bring_in_time() -> None:
    now = 0.0
    tiered = Tiered(clock=lambda: now, host_slots=8, disk_files=100)
    tiered.answer(make_request(1, FIRST, 2))
    for number in range(2, 6):
        tiered.answer(make_request(number, [token + number for token in OTHER], 2))
    waiting = make_request(9, [*FIRST, 90], 2)
    tiered.engine.submit(waiting)
    for _ in range(5):
        tiered.engine.step()
    assert waiting in list(tiered.engine.scheduler.waiting)
    now = tiered.engine.scheduler.promotions_until
    assert 0 < now < 10
    while tiered.engine.has_work:
        tiered.engine.step()  # no file arrives
        tiered.engine.check_pages()
    assert waiting.num_cached == 0
    assert waiting.output == reference(waiting.prompt, 2)
    assert tiered.engine.scheduler.promotions_until == math.inf
    tiered.copy_all()


def test_kv_that_is_not_trusted_leaves_all_tiers() -> None:
    tiered = Tiered(disk_files=100)
    tiered.answer(make_request(1, FIRST, 2))
    runner: Any = tiered.engine.runner
    runner.fails = {2}
    tiered.engine.submit(make_request(2, [*FIRST, 90], 2))
    while tiered.engine.has_work:
        tiered.engine.step()
        tiered.copier.work(disk=False)
    tiered.copy_all()
    assert not any(change.blocks for change in tiered.engine.kv.contents())
    assert not tiered.copier.files


@pytest.mark.parametrize("disk_files", [0, 100])
def test_the_report_of_blocks_is_what_can_be_reused(disk_files: int) -> None:
    tiered = Tiered(host_slots=12, disk_files=disk_files)
    reported = CachedPrefixes(4)
    for number in range(8):
        tiered.answer(make_request(number + 1, [token + number // 2 for token in FIRST], 2))
        for change in tiered.engine.kv.take_changes():
            report(reported, change)
        whole = CachedPrefixes(4)
        for change in tiered.engine.kv.contents():
            report(whole, change)
        assert (reported._stored, reported._below) == (whole._stored, whole._below)
    cache = tiered.engine.kv.cache
    assert set(cache.blocks()) == reported._stored - reported._below != reported._stored


def report(known: CachedPrefixes, change: CacheChange) -> None:
    known.changed(worker_pb2.CacheChange(stored=change.stored, blocks=change.blocks, below=change.below))


def test_a_tier_that_is_cleared_during_a_late_read_stays_cleared() -> None:
    """The file is given up already when the store is found not to answer."""
    tiered = Tiered(host_slots=8, disk_files=100, below=Tier.OBJECT, disk_pause_s=0.0)
    tiered.answer(make_request(1, FIRST, 2))
    for number in range(2, 6):
        tiered.answer(make_request(number, [token + number for token in OTHER], 2))
    again = make_request(9, [*FIRST, 90], 2)
    tiered.engine.submit(again)
    tiered.engine.step()
    assert any(isinstance(job, Load) for job in tiered.copier.disk_jobs)
    assert tiered.tiers.clear(Tier.OBJECT, None)
    tiered.copier.late = True
    tiered.copier.work(disk=True)
    tiered.engine.poll_tiers()
    tiered.copier.late = False
    while tiered.engine.has_work:
        tiered.engine.step()
        tiered.copy_all()
    assert again.output == reference(again.prompt, 2)


def test_copies_on_their_way_to_a_tier_that_is_cleared_end_unused() -> None:
    tiered = Tiered()
    tiered.engine.submit(make_request(1, FIRST, 2))
    while tiered.engine.has_work:
        tiered.engine.step()
    tiered.engine.poll_tiers()
    assert any(isinstance(job, Demote) for job in tiered.copier.device_jobs)
    assert tiered.engine.kv.clear(None)
    assert tiered.tiers.clear(Tier.HOST, None)
    tiered.copy_all()
    assert not list(tiered.tiers.host)
    again = make_request(2, [*FIRST, 90], 2)
    tiered.answer(again)
    assert again.num_cached == 0


def test_conversations_lose_nothing_to_evictions_while_copies_keep_up() -> None:
    """Pages that have come up have copies, and are not those that are evicted next."""
    tiered = Tiered(num_pages=64, host_slots=400, batch=4)
    rng = random.Random(0)
    histories = [[rng.randrange(5, 50) for _ in range(16)] for _ in range(12)]
    turns = [number for number in range(len(histories)) for _ in range(5)]
    rng.shuffle(turns)
    lacking = 0
    for index, number in enumerate(turns):
        known = len(histories[number])
        histories[number] += [rng.randrange(5, 50) for _ in range(rng.randrange(8, 12))]
        turn = make_request(index, list(histories[number]), 4)
        tiered.answer(turn)
        if known > 16:  # all but the last block, which the answer may have filled in part
            lacking += max(0, known - 4 - (turn.num_cached or 0))
        histories[number] += turn.output
    assert tiered.tiers.counts.promoted[Tier.HOST] > 100
    assert tiered.tiers.counts.dropped == 0
    assert lacking == 0


def test_kv_of_a_long_answer_goes_down_before_its_end() -> None:
    tiered = Tiered(num_pages=40)
    request = make_request(1, FIRST, 100)
    tiered.engine.submit(request)
    while len(request.output) < 80:
        tiered.engine.step()
        tiered.engine.check_pages()
        tiered.copier.work(disk=False)
    assert len(tiered.tiers.host) == 64 // 4
    while tiered.engine.has_work:
        tiered.engine.step()
    assert request.output == reference(FIRST, 100)
    tiered.copy_all()
    assert len(tiered.tiers.host) == 123 // 4


def test_kv_of_a_long_answer_goes_down_though_drafts_step_over_the_places_to_cache_it() -> None:
    tiered = Tiered(num_pages=40)
    request = make_request(1, FIRST, 100)
    oracle = Oracle(reference(FIRST, 100), VOCAB, 1.0, random.Random(0))
    config = SpeculationConfig(num_draft_tokens=6, adaptive=False)
    speculate(tiered.engine, config, lambda _: [oracle])
    tiered.engine.submit(request)
    while len(request.output) < 80:
        tiered.engine.step()
        tiered.copier.work(disk=False)
    assert len(tiered.tiers.host) >= 64 // 4
    while tiered.engine.has_work:
        tiered.engine.step()
    assert request.output == reference(FIRST, 100)


@pytest.mark.parametrize("disk_files", [0, 30])
def test_pages_without_a_file_are_known_while_they_are_in_host_memory(disk_files: int) -> None:
    """Files cannot be written: what waits for one is at most what is in host memory."""
    tiered = Tiered(host_slots=20, disk_files=disk_files, disk_pause_s=1e9)
    tiered.copier.disk_full = True
    for number in range(1, 21):
        tiered.answer(make_request(number, [number, *range(40, 60)], 2))
    assert tiered.tiers.counts.demoted > 60
    assert len(tiered.tiers._unsaved) <= (20 if disk_files else 0)
