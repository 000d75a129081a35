"""Whether a head can draft for a model. Does not import torch."""

from __future__ import annotations

from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_spec import ModelSpec

__all__ = ["drafts_as_head"]


def drafts_as_head(target: ModelSpec, drafter: ModelSpec) -> bool:
    """False if `drafter` is a model of its own. Raises UnsupportedModel for a head of another model."""
    head, eagle = drafter, drafter.eagle
    if eagle is None:
        return False
    if target.rope is None:
        raise UnsupportedModel(f"{target.architecture} shows no hidden states to an EAGLE-3 head")
    if target.delta is not None or any(group.window is not None for group in target.kv_groups):
        raise UnsupportedModel(
            f"{target.architecture} cannot have an EAGLE-3 head: its layers have windows or a recurrent state"
        )
    if (target.vocab_size, target.hidden_size) != (head.vocab_size, eagle.target_hidden_size):
        raise UnsupportedModel(
            f"the EAGLE-3 head is of a model with {head.vocab_size} tokens and hidden states of"
            f" {eagle.target_hidden_size}, but this one has {target.vocab_size} and {target.hidden_size};"
            " use a head of this model"
        )
    if head.hidden_size != target.hidden_size:
        raise UnsupportedModel(
            f"the EAGLE-3 head has hidden states of {head.hidden_size}, but takes embeddings of"
            f" {target.hidden_size} from its target"
        )
    eagle.layers_of(target.num_layers)
    return True
