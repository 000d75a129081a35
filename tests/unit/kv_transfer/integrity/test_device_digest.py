"""The digester of pools on a GPU, here over a pool in host memory; tests/gpu has the real thing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kv_transfer import KVLayout
from kv_transfer.integrity.device_digest import DeviceDigester
from kv_transfer.integrity.digest import PageDigester
from kv_transfer.integrity.sum64 import HostSum64
from kv_transfer.state_layout import StateLayout
from tests.sum64_cases import LAYOUTS, name_of, pool_of
from tests.unit.kv_transfer.integrity.sum64_torch import page_sums


def pair_of(layout: KVLayout) -> tuple[PageDigester, PageDigester]:
    pool = pool_of(layout)
    tensor = torch.from_numpy(pool.bytes).view(getattr(torch, layout.dtype))
    return DeviceDigester(tensor, layout, page_sums), HostSum64(pool.memory, layout)


@pytest.mark.parametrize("layout", LAYOUTS, ids=name_of)
def test_device_digests_equal_host_digests_for_every_dtype(layout: KVLayout) -> None:
    device, host = pair_of(layout)
    for tail in {1, layout.page_size}:
        assert device.digest([4, 0, 2, 5], tail) == host.digest([4, 0, 2, 5], tail)


def test_more_pages_than_fit_one_launch_are_digested_in_batches() -> None:
    device, host = pair_of(LAYOUTS[1])
    pages = [page % 6 for page in range(2050)]
    assert device.digest(pages, 2) == host.digest(pages, 2)


def test_no_pages_have_no_digests() -> None:
    assert pair_of(LAYOUTS[0])[0].digest([], 1) == []


def test_a_pool_of_another_page_size_is_refused() -> None:
    pool = torch.from_numpy(pool_of(LAYOUTS[0]).bytes)
    with pytest.raises(ValueError, match="bytes per page"):
        DeviceDigester(pool, replace(LAYOUTS[0], page_size=8), page_sums)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("rows", [(64, 12), (6, 10), (3, 5, 7)])
def test_states_have_the_same_digests_on_a_device(rows: tuple[int, ...], ranks: int) -> None:
    layout = replace(
        LAYOUTS[0], num_kv_heads=2, state=StateLayout(4, ((3, rows), (2, rows[1:]))), tp_size=ranks
    )
    pool = pool_of(layout)
    tensor = torch.from_numpy(pool.bytes).view(getattr(torch, layout.dtype))
    device, host = DeviceDigester(tensor, layout, page_sums), HostSum64(pool.memory, layout)
    assert device.digest_state(1) == host.digest_state(1)
    assert len(device.digest_state(1)) == 4 // ranks
