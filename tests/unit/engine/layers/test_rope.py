"""Rotary angles against transformers' own, over the range of parameters."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.layers.ops import Ops
from engine.layers.rope import inverse_frequencies, rope_table
from engine.spec.rope_spec import RopeScaling, RopeSpec

CPU = torch.device("cpu")
head_dims = st.sampled_from([16, 64, 80, 128])
thetas = st.floats(100.0, 1e7)


@given(
    head_dim=head_dims,
    theta=thetas,
    factor=st.floats(1.0, 64.0),
    low=st.floats(0.5, 2.0),
    width=st.floats(0.5, 8.0),
    original=st.integers(64, 32768),
)
def test_llama3_scaling_equals_that_of_transformers(
    head_dim: int, theta: float, factor: float, low: float, width: float, original: int
) -> None:
    parameters = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": low + width,
        "original_max_position_embeddings": original,
    }
    config = LlamaConfig(head_dim=head_dim, max_position_embeddings=131072, rope_parameters=dict(parameters))
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, CPU)

    actual = inverse_frequencies(RopeSpec.from_config({"rope_parameters": parameters}), head_dim)

    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=1e-9)


@given(head_dim=head_dims, theta=thetas, factor=st.floats(1.0, 64.0))
def test_linear_scaling_is_the_same_as_dividing_positions(head_dim: int, theta: float, factor: float) -> None:
    plain = RopeSpec(theta=theta)
    scaled = RopeSpec(theta=theta, scaling=RopeScaling.LINEAR, factor=factor)

    actual = inverse_frequencies(scaled, head_dim) * factor
    torch.testing.assert_close(actual, inverse_frequencies(plain, head_dim))


def test_rotation_keeps_lengths_and_depends_on_distance_only() -> None:
    ops = Ops()
    table = rope_table(RopeSpec(), 32, 512, CPU)
    q, k = torch.randn(1, 1, 32), torch.randn(1, 1, 32)

    def rotated(x: torch.Tensor, position: int) -> torch.Tensor:
        return ops.rotation(table, torch.tensor([position]), torch.float32).turn(x)

    torch.testing.assert_close(rotated(q, 300).norm(), q.norm())
    near = (rotated(q, 17) * rotated(k, 3)).sum()
    far = (rotated(q, 417) * rotated(k, 403)).sum()
    torch.testing.assert_close(near, far, atol=1e-4, rtol=1e-4)


def test_the_table_is_float32_even_while_a_bfloat16_model_is_built() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        table = rope_table(RopeSpec(), 16, 8, CPU)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(table, rope_table(RopeSpec(), 16, 8, CPU), rtol=0, atol=0)
