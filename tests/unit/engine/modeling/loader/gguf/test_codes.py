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
    one_half = ("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS")
    halves = {"Q6_K": [208], "Q2_K": [80, 82], "Q3_K": [108]}.get(
        kind.name, [0] if kind.name in one_half else [0, 2]
    )
    for block in data.reshape(-1, size):
        for at in halves:  # random bytes may be infinite
            block[at : at + 2] = np.array([random.normal()], np.float16).view(np.uint8)

    tensor = coded(data, kind)

    assert tensor.scales.shape[1] == 3 * values // GROUPS[kind]
    for found in (tensor, tensor.in_groups_of(16)):
        assert np.array_equal(found.dense(), dequantize(data, kind))
