"""The kernel that prepares latents and their queries, interpreted, against the same in plain torch."""

from __future__ import annotations

import os

import pytest
import torch

from engine.modeling.layers.ops.ops import Ops

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs triton, and TRITON_INTERPRET=1"
)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rows_equal_those_of_plain_torch(interleaved: bool) -> None:
    from engine.kernels.attention.latent_rows import latent_rows

    tokens, heads, rank, rotated = 5, 3, 24, 8
    absorbed = torch.randn(heads, tokens, rank).transpose(0, 1)
    queries = torch.randn(tokens, heads, 20)[:, :, 12:]
    latents, weight = torch.randn(tokens, rank + rotated), torch.randn(rank)
    angles = torch.randn(50, rotated // 2)
    table, positions = torch.cat((angles.cos(), angles.sin()), dim=1), torch.randint(0, 50, (tokens,))
    given = absorbed, queries, latents, weight, 1e-6
    rotation = Ops().rotation(table, positions, torch.float32)

    rows = latent_rows(*given, table, positions, interleaved=interleaved)

    expected = Ops().latent_rows(*given, rotation, interleaved=interleaved)
    torch.testing.assert_close(rows, expected, atol=1e-5, rtol=1e-5)
