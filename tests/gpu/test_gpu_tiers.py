"""Copies between a KV pool on a GPU and pinned host memory."""

from __future__ import annotations

import pytest
import torch

from common.kv_groups import full_group
from engine.kv_tiers.host_pages import HostPages
from kv_transfer import KVLayout
from kv_transfer.integrity.device_digest import DeviceDigester

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def finished(copies: torch.cuda.Event | None) -> None:
    assert copies is not None
    copies.synchronize()


def test_pages_come_up_as_they_went_down() -> None:
    pool = torch.randn(64, 4, 2, 2, 16, 64, device="cuda", dtype=torch.bfloat16)
    before = pool.clone()
    host = HostPages(pool, num_slots=40)
    pages, slots = [3, 4, 5, 60, 7, 6], [0, 1, 2, 39, 8, 9]
    finished(host.fetch(pages, slots))
    pool.zero_()
    torch.cuda.synchronize()
    finished(host.put(slots, pages))
    assert torch.equal(pool[pages], before[pages])
    assert not pool[8:60].any()


def test_a_damaged_slot_is_seen_by_the_digest_in_the_pool() -> None:
    layout = KVLayout(
        weights="m",
        dtype="bfloat16",
        groups=full_group(4),
        num_kv_heads=2,
        head_dim=64,
        page_size=16,
        digest="sum64",
    )
    pool = torch.randn(8, 4, 2, 2, 16, 64, device="cuda", dtype=torch.bfloat16)
    digester = DeviceDigester(pool, layout)
    host = HostPages(pool, num_slots=2)
    good = digester.digest([3], 16)
    finished(host.fetch([3], [1]))
    host.slot(1)[100] ^= 1
    finished(host.put([1], [5]))
    assert digester.digest([5], 16) != good
