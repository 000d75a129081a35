"""Rotary angles against transformers' own, over the range of parameters."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.model_config.parts.rope_spec import RopeScaling, RopeSpec
from engine.modeling.layers.ops.ops import Ops
from engine.modeling.layers.rope import inverse_frequencies, rope_table

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

    actual = inverse_frequencies(RopeSpec.from_config(config.to_dict()), head_dim)

    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=1e-9)


@given(
    head_dim=head_dims,
    theta=thetas,
    factor=st.floats(1.0, 64.0),
    original=st.integers(256, 32768),
    betas=st.tuples(st.floats(8.0, 64.0), st.floats(0.5, 4.0)),
    truncate=st.booleans(),
    magnitude=st.sampled_from(
        [{}, {"attention_factor": 1.3}, {"mscale": 1.0, "mscale_all_dim": 0.7}, {"mscale": 0.5}]
    ),
)
def test_yarn_equals_that_of_transformers(
    head_dim: int,
    theta: float,
    factor: float,
    original: int,
    betas: tuple[float, float],
    truncate: bool,
    magnitude: dict[str, float],
) -> None:
    parameters = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": factor,
        "beta_fast": betas[0],
        "beta_slow": betas[1],
        "truncate": truncate,
        "original_max_position_embeddings": original,
        **magnitude,
    }
    config = LlamaConfig(head_dim=head_dim, max_position_embeddings=131072, rope_parameters=parameters)
    expected, factor_of_both = ROPE_INIT_FUNCTIONS["yarn"](config, CPU)
    spec = RopeSpec.from_config(config.to_dict())

    torch.testing.assert_close(inverse_frequencies(spec, head_dim), expected, rtol=2e-5, atol=1e-9)
    assert spec.magnitude == pytest.approx(factor_of_both)


@pytest.mark.parametrize("share", [1.0, 0.75])
@pytest.mark.parametrize(("longest", "beyond"), [(4096, False), (4097, True)])
def test_longrope_has_the_angles_of_the_longest_request(longest: int, beyond: bool, share: float) -> None:
    pairs = int(32 * share) // 2
    parameters = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": share,
        "short_factor": [1.0 + 0.1 * i for i in range(pairs)],
        "long_factor": [2.0 + 3.0 * i for i in range(pairs)],
    }
    sizes = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    config = Phi3Config(
        **sizes, hidden_size=64, num_attention_heads=2, pad_token_id=None, rope_parameters=parameters
    )
    expected, magnitude = ROPE_INIT_FUNCTIONS["longrope"](config, CPU, seq_len=longest)
    spec = RopeSpec.from_config(config.to_dict(), partial=True).for_context(longest)

    rotated = inverse_frequencies(spec, 32)[:pairs]

    torch.testing.assert_close(rotated, expected, rtol=1e-6, atol=1e-9)
    assert spec.magnitude == pytest.approx(magnitude)
    assert (spec.factors == spec.long_factors) == beyond


def test_dynamic_scaling_has_plain_angles_up_to_the_longest_context() -> None:
    parameters = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 500.0}
    config = LlamaConfig(head_dim=32, max_position_embeddings=2048, rope_parameters=parameters)
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, CPU, seq_len=2048)
    spec = RopeSpec.from_config(config.to_dict())

    torch.testing.assert_close(inverse_frequencies(spec, 32), expected, rtol=1e-6, atol=1e-9)


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
