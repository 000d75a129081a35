"""Copies between a KV pool on a GPU and pinned host memory."""

from __future__ import annotations

import pytest
import torch

from common.kv_groups import full_group
from engine.device import small_copies
from engine.kv.tiers.host_pages import HostPages
from kv_transfer import KVLayout
from kv_transfer.integrity.device_digest import DeviceDigester

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def finished(copies: torch.cuda.Event | None) -> None:
    assert copies is not None
    copies.synchronize()


@pytest.mark.parametrize("in_one_call", [False, True])
def test_pages_come_up_as_they_went_down(in_one_call: bool) -> None:
    pool = torch.randn(64, 4, 2, 2, 16, 64, device="cuda", dtype=torch.bfloat16)
    before = pool.clone()
    host = HostPages(pool, num_slots=40)
    if not in_one_call:
        host._batches = None
    elif host._batches is None:
        pytest.skip("this CUDA has no such call")
    pages, slots = [3, 4, 5, 60, 7, 6], [0, 1, 2, 39, 8, 9]
    finished(host.fetch(pages, slots))
    pool.zero_()
    torch.cuda.synchronize()
    finished(host.put(slots, pages))
    assert torch.equal(pool[pages], before[pages])
    assert not pool[8:60].any()


def test_a_damaged_slot_is_seen_by_the_digest_in_the_pool() -> None:
    layout = KVLayout(
        model="m",
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


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.int32, torch.int64])
def test_kernels_copy_from_and_to_pinned_memory(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_copies, "_kernel", None)
    small_copies.use_kernels(torch.device("cuda"))
    for size in (0, 1, 3, 1023, 1025, 70_001):
        values = torch.randint(0, 2, (size,)).to(dtype).pin_memory()
        there = small_copies.to_device(values, torch.device("cuda"))
        back = torch.zeros(size, dtype=dtype, pin_memory=True)
        small_copies.copy(back, there)
        torch.cuda.synchronize()
        assert torch.equal(there.cpu(), values)
        assert torch.equal(back, values)


def test_a_small_copy_does_not_wait_for_bulk_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_copies, "_kernel", None)
    small_copies.use_kernels(torch.device("cuda"))
    source = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device="cuda")
    few = torch.arange(64).pin_memory()
    bulk = torch.cuda.Event()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        target.copy_(source, non_blocking=True)
        bulk.record()
    there = small_copies.to_device(few, torch.device("cuda"))
    torch.cuda.current_stream().synchronize()
    assert not bulk.query()
    stream.synchronize()
    assert torch.equal(there.cpu(), few)
