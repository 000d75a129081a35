"""Weights that are copied through pinned memory by several threads arrive as they are in the files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from engine.modeling.loader import upload
from engine.modeling.loader.upload import Upload

DTYPES = [torch.float8_e4m3fn, torch.bfloat16, torch.float32, torch.int64, torch.bool]


def random(dtype: torch.dtype, number: int) -> torch.Tensor:
    values = torch.randint(0, 100, (300, 71), generator=torch.Generator().manual_seed(number))
    return values.to(torch.float32).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_many_tensors_at_once_arrive_whole(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "_BUFFER_BYTES", 8192)
    copy = Upload()
    sources = [random(dtype, number) for number in range(64)]
    sources = [part for whole in sources for part in (whole, whole[:, 30:], whole.t(), whole[::2])]
    targets = [torch.empty(source.shape, dtype=dtype, device="cuda") for source in sources]
    torch.cuda._sleep(100_000_000)  # copies begin when all buffers are full

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(copy, targets, sources))

    for target, source in zip(targets, sources, strict=True):
        assert torch.equal(target.cpu().float(), source.float())


def test_values_are_converted_to_the_type_of_the_target_and_strides_are_kept() -> None:
    source = random(torch.bfloat16, 0)
    target = torch.zeros((71, 600), device="cuda")

    Upload()(target.t()[300:], source)

    assert torch.equal(target[:, 300:].cpu(), source.t().float())
    assert not target[:, :300].any()
