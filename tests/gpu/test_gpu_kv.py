"""KV of a pool on a GPU: its digests, and its way into another pool."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from common.kv_groups import full_group
from kv_transfer import KVLayout, Peer, PoolMemory
from kv_transfer.integrity.device_digest import DeviceDigester
from kv_transfer.integrity.sum64 import HostSum64, Words
from kv_transfer.planner import Copy
from kv_transfer.state_layout import StateLayout
from tests.kv_support import Pool
from tests.sum64_cases import LAYOUTS, as_words, jobs_for, name_of, pool_of, reference, unsigned

LLAMA_8B = KVLayout(
    model="m",
    dtype="bfloat16",
    groups=full_group(32),
    num_kv_heads=8,
    head_dim=128,
    page_size=16,
    digest="sum64",
)


def on_gpu(pool: Pool) -> torch.Tensor:
    return torch.from_numpy(pool.bytes).view(getattr(torch, pool.layout.dtype)).cuda()


@pytest.mark.parametrize("layout", [*LAYOUTS, LLAMA_8B], ids=name_of)
def test_the_kernel_agrees_with_torch_and_with_the_host_bit_for_bit(layout: KVLayout) -> None:
    from kv_transfer.integrity import sum64_triton
    from tests.unit.kv_transfer.integrity import sum64_torch

    pool, jobs, words = pool_of(layout), jobs_for(layout), Words.of(layout)
    expected = reference(pool, jobs)
    there = as_words(pool).cuda(), jobs.cuda(), words
    assert unsigned(sum64_torch.page_sums(*there)) == expected
    assert unsigned(sum64_triton.page_sums(*there)) == expected


def test_any_flipped_bit_of_a_large_page_changes_its_digest() -> None:
    pool = on_gpu(pool_of(LLAMA_8B))
    digester = DeviceDigester(pool, LLAMA_8B)
    words = pool.view(torch.int32)
    before = digester.digest(range(6), 5)
    generator = torch.Generator().manual_seed(0)
    for round in range(200):
        place = torch.randint(words[3].numel(), (1,), generator=generator)
        words[3].view(-1)[place] ^= 1 << round % 31
        torch.cuda.synchronize()  # the digester requires pages that no kernel is writing
        after = digester.digest(range(6), 5)
        assert [a == b for a, b in zip(after, before, strict=True)] == [True] * 3 + [False] + [True] * 2
        words[3].view(-1)[place] ^= 1 << round % 31


def test_a_digest_does_not_wait_for_the_step_in_flight() -> None:
    digester = DeviceDigester(on_gpu(pool_of(LLAMA_8B)), LLAMA_8B)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second of clock cycles on the engine's stream
    step = torch.cuda.Event()
    step.record()
    digester.digest(range(6), 16)
    assert not step.query()
    step.synchronize()


def test_digests_are_much_faster_than_any_link() -> None:
    pool = torch.randint(-(2**31), 2**31 - 1, (513, LLAMA_8B.page_bytes // 4), dtype=torch.int32)
    digester = DeviceDigester(pool.cuda().view(torch.bfloat16), LLAMA_8B)
    pages = list(range(512))
    digester.digest(pages, 16)
    began = time.perf_counter()
    for _ in range(5):
        digester.digest(pages, 16)
    rate = 5 * len(pages) * LLAMA_8B.page_bytes / (time.perf_counter() - began)
    print(f"\nsum64 of 1 GiB on the device: {rate / 1e9:.0f} GB/s")
    assert rate > 500e9


def test_a_state_has_the_digests_of_the_host_within_two_milliseconds() -> None:
    """In the shape of Qwen3-Next's, of which a page is 1 / 197."""
    rows = (36, (2 * 128 * 128 * 4,)), (36, (768, 768, 1536))
    layout = replace(
        LLAMA_8B, groups=full_group(12), num_kv_heads=2, head_dim=256, state=StateLayout(16, rows)
    )
    pool = Pool(200, layout)
    pool.fill(range(200))
    digester = DeviceDigester(on_gpu(pool), layout)
    assert digester.digest_state(2) == HostSum64(pool.memory, layout).digest_state(2)
    began = time.perf_counter()
    for _ in range(5):
        digester.digest_state(1)
    seconds = (time.perf_counter() - began) / 5
    print(f"\nsum64 of a state of {layout.state_bytes / 1e6:.0f} MB on the device: {1e3 * seconds:.2f} ms")
    assert seconds < 0.002


def test_pages_written_over_nixl_arrive_as_their_digests_say() -> None:
    from kv_transfer.transports.base import WriteDone
    from kv_transfer.transports.nixl import NixlTransport

    source, target = on_gpu(pool_of(LLAMA_8B)), on_gpu(Pool(6, LLAMA_8B))
    transports = [NixlTransport(name, _memory(pool)) for name, pool in (("p", source), ("d", target))]
    sender, receiver = transports
    peer = Peer.of("d", 0, receiver.metadata, _memory(target), LLAMA_8B)
    sender.connect(peer)
    size = LLAMA_8B.page_bytes
    write = sender.write(peer, [Copy(0, size, 2 * size), Copy(5 * size, 4 * size, size)], b"")
    deadline = time.monotonic() + 10
    while WriteDone(write) not in sender.poll():
        receiver.poll()
        assert time.monotonic() < deadline
    sent = DeviceDigester(source, LLAMA_8B).digest([0, 1, 5], 16)
    assert DeviceDigester(target, LLAMA_8B).digest([1, 2, 4], 16) == sent
    for transport in transports:
        transport.close()


def _memory(pool: torch.Tensor) -> PoolMemory:
    return PoolMemory(pool.data_ptr(), pool[0].nbytes, len(pool), device=str(pool.device))
