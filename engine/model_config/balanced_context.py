"""At which context attention takes as much arithmetic as everything else."""

from __future__ import annotations

from engine.model_config.model_spec import ModelSpec


def balanced_context(spec: ModelSpec) -> float:
    """Tokens of context at which attention takes as much arithmetic as all matrices of the layers."""
    in_layers = spec.active_parameters - spec.vocab_size * spec.hidden_size
    per_token = 2 * spec.q_size  # with a key, and with a value
    if spec.latent is not None:
        per_token = spec.num_heads * (spec.latent.row + spec.latent.rank)
    left = in_layers / per_token  # tokens, of all layers together
    windows = sorted(spec.window(layer) or spec.max_position for layer in spec.attention_layers)
    for index, window in enumerate(windows):
        layers = len(windows) - index
        if window == spec.max_position or layers * window >= left:
            return left / layers
        left -= window
    return float(spec.max_position)
