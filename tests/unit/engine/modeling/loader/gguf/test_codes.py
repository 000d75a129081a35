"""Codes, scales and offsets stand for exactly the values that gguf's own package dequantizes."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from engine.modeling.loader.gguf.codes import GROUPS, coded


@pytest.mark.parametrize("kind", GROUPS, ids=lambda kind: kind.name)
def test_codes_stand_for_the_dequantized_values(kind: GGMLQuantizationType) -> None:
    random = np.random.default_rng(0)
    values, size = GGML_QUANT_SIZES[kind]
    data = random.integers(0, 256, (5, 3 * size), dtype=np.uint8)
    halves = {"Q6_K": [208]}.get(kind.name, [0] if kind.name in ("Q4_0", "Q5_0", "Q8_0") else [0, 2])
    for block in data.reshape(-1, size):
        for at in halves:  # random bytes may be infinite
            block[at : at + 2] = np.array([random.normal()], np.float16).view(np.uint8)

    tensor = coded(data, kind)

    assert tensor.scales.shape[1] == 3 * values // GROUPS[kind]
    for found in (tensor, tensor.in_groups_of(16)):
        grouped = found.codes.reshape(*found.scales.shape, -1).astype(np.float32) * found.scales[..., None]
        if found.offsets is not None:
            grouped += found.offsets[..., None]
        assert np.array_equal(grouped.reshape(5, -1), dequantize(data, kind))
