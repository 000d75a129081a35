"""sum64: what it is, what it notices, and that everybody computes the same."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from kv_transfer import KVLayout, Ready
from kv_transfer.integrity.sum64 import (
    MASK,
    MIX_FACTOR,
    MIX_OFFSET,
    SPREAD,
    STIR_1,
    STIR_2,
    HostSum64,
    Words,
    weights,
)
from kv_transfer.layout import SUM64
from kv_transfer.transports import LoopbackNetwork, LoopbackTransport
from tests.kv_support import REQUEST, Pool, final_for, receiver_on, sender_on
from tests.sum64_cases import LAYOUTS, as_words, jobs_for, name_of, pool_of, reference, unsigned
from tests.unit.kv_transfer.integrity.sum64_torch import page_sums

LAYOUT = LAYOUTS[1]
every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=name_of)


def digest_of(pool: Pool, page: int = 0, tokens: int = 0) -> int:
    return HostSum64(pool.memory, pool.layout).digest([page], tokens or pool.layout.page_size)[0]


def by_the_book(pool: Pool, page: int, tokens: int) -> int:
    """The definition, word by word."""
    layout, words = pool.layout, Words.of(pool.layout)
    values = iter(pool.bytes[page].view(f"<u{words.word_bytes}").tolist())
    total = 0
    shard = range(layout.first_head, layout.first_head + layout.heads_per_shard)
    places = product(range(2 * layout.page_layers), shard, range(layout.page_size))
    for kind, head, token in places:
        for word in range(words.words_per_token):
            row = kind * layout.num_kv_heads + head
            position = (row * layout.page_size + token) * words.words_per_token + word
            z = (position + 1) * SPREAD & MASK
            z = (z ^ z >> 30) * STIR_1 & MASK
            z = (z ^ z >> 27) * STIR_2 & MASK
            y = (next(values) + MIX_OFFSET) * MIX_FACTOR & MASK
            if token < tokens:
                total += ((z ^ z >> 31) | 1) * (y ^ y >> 32)
    return total & MASK


@every_layout
def test_the_host_computes_what_the_definition_says(layout: KVLayout) -> None:
    pool, jobs = pool_of(layout), jobs_for(layout)
    assert reference(pool, jobs) == [by_the_book(pool, page, tokens) for page, tokens in jobs.tolist()]


@every_layout
def test_torch_agrees_with_the_host_bit_for_bit(layout: KVLayout) -> None:
    pool, jobs = pool_of(layout), jobs_for(layout)
    assert unsigned(page_sums(as_words(pool), jobs, Words.of(layout))) == reference(pool, jobs)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs triton, and TRITON_INTERPRET=1")
@pytest.mark.parametrize("programs", [1, 512], ids=["several pages a program", "one"])
@every_layout
def test_the_kernel_interpreted_agrees_with_the_host_bit_for_bit(
    layout: KVLayout, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kv_transfer.integrity import sum64_triton

    monkeypatch.setattr(sum64_triton, "_PROGRAMS", programs)
    monkeypatch.setattr(sum64_triton, "_MOST_PAGES", 4)
    pool, jobs = pool_of(layout), jobs_for(layout)
    found = sum64_triton.page_sums(as_words(pool), jobs, Words.of(layout))
    assert unsigned(found) == reference(pool, jobs)


@pytest.mark.parametrize("tp_size", [1, 2, 4])
def test_digests_of_the_shards_of_a_page_add_up_to_its_own(tp_size: int) -> None:
    whole = pool_of(LAYOUT)
    heads = whole.bytes.reshape(6, -1, LAYOUT.num_kv_heads, LAYOUT.head_bytes)
    total = 0
    for rank in range(tp_size):
        shard = Pool(6, replace(LAYOUT, tp_size=tp_size, tp_rank=rank))
        first, held = shard.layout.first_head, shard.layout.heads_per_shard
        shard.bytes[:] = heads[:, :, first : first + held].reshape(6, -1)
        total += digest_of(shard, page=3, tokens=2)
    assert total & MASK == digest_of(whole, page=3, tokens=2)


@pytest.mark.parametrize("axes", ["head", "token", "layer", "kind"])
def test_swapped_parts_change_the_digest(axes: str) -> None:
    pool = pool_of(LAYOUT)
    before = digest_of(pool)
    page = pool.bytes[0].reshape(
        LAYOUT.page_layers, 2, LAYOUT.num_kv_heads, LAYOUT.page_size, LAYOUT.token_bytes
    )
    axis = {"layer": 0, "kind": 1, "head": 2, "token": 3}[axes]
    page[:] = np.roll(page, 1, axis=axis)
    assert digest_of(pool) != before


def test_signs_flipped_at_two_places_do_not_cancel_out() -> None:
    """The highest bit of a word is where a sum of plain products would be weakest."""
    pool = Pool(1, LAYOUT)
    words = pool.bytes.view("<u4").reshape(-1)
    seen = {digest_of(pool)}
    for other in range(1, len(words)):
        words[0] = words[other] = 1 << 31
        seen.add(digest_of(pool))
        words[other] = 0
    assert len(seen) == len(words)


def test_zero_pages_of_different_lengths_have_different_digests() -> None:
    pool = Pool(1, LAYOUT)
    digests = {digest_of(pool, tokens=tokens) for tokens in range(1, LAYOUT.page_size + 1)}
    assert len(digests | {0}) == LAYOUT.page_size + 1


@every_layout
def test_weights_are_odd_and_all_different(layout: KVLayout) -> None:
    table = weights(Words.of(layout))
    assert (table & np.uint64(1)).all()
    assert len(np.unique(table)) == table.size


def test_a_handoff_is_verified_with_the_digest_that_its_layout_names() -> None:
    network = LoopbackNetwork()
    source, target = pool_of(LAYOUT), Pool(6, LAYOUT)
    sender = sender_on(LoopbackTransport("p", source.memory, network), source)
    receiver = receiver_on(LoopbackTransport("d", target.memory, network), target)
    ticket = receiver.reserve(1, sender.peer, [3, 1], 0, 7, 0.0, 9.0, request_digest=REQUEST)
    sender.open(1, 0.0, 9.0)
    sender.attach(ticket, 0.0)
    sender.finish(1, [0, 5], 7, final_for(7), 0.0)
    events = [event for _ in range(4) for event in (*sender.poll(0.0), *receiver.poll(0.0))]
    assert any(isinstance(event, Ready) for event in events)


def test_a_layout_that_names_an_unknown_digest_is_refused() -> None:
    pool = Pool(1, replace(LAYOUT, digest="crc32"))
    with pytest.raises(ValueError, match="crc32"):
        sender_on(LoopbackTransport("p", pool.memory, LoopbackNetwork()), pool)


def test_workers_with_different_digests_have_different_layout_hashes() -> None:
    assert replace(LAYOUT, digest=SUM64).hash != replace(LAYOUT, digest="xxh3-64").hash
