"""The decoder of an engine that has the vision model alone."""

from __future__ import annotations

from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.rope_spec import RopeSpec

_HIDDEN = 64
"""A size for which every backend has kernels, as one head."""


def probe_decoder(spec: ModelSpec) -> ModelSpec:
    """A layer of a small decoder with the vocabulary and the vision model of `spec`.

    Its weights are random: it answers warm-up and health probes, which run through the engine as requests do.
    """
    return ModelSpec(
        architecture="LlamaForCausalLM",
        vocab_size=spec.vocab_size,
        hidden_size=_HIDDEN,
        intermediate_size=_HIDDEN,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=_HIDDEN,
        max_position=spec.max_position,
        norm_eps=1e-6,
        rope=RopeSpec(),
        tied_embeddings=True,
        vision=spec.vision,
        eos_token_ids=spec.eos_token_ids,
        dtype=spec.dtype,
    )
