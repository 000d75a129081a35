"""Which heads can draft for a model."""

from __future__ import annotations

from dataclasses import replace

from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_spec import ModelSpec


def drafts_as_head(target: ModelSpec, drafter: ModelSpec) -> bool:
    """False if `drafter` is a model of its own. Raises UnsupportedModel for a head of another model."""
    head, eagle = drafter, drafter.eagle
    if eagle is None:
        return False
    if target.rope is None:
        raise UnsupportedModel(f"{target.architecture} shows no hidden states to an EAGLE-3 head")
    _require_whole_context(target, "an EAGLE-3 head")
    if (target.vocab_size, target.hidden_size) != (head.vocab_size, eagle.target_hidden_size):
        raise UnsupportedModel(
            f"the EAGLE-3 head is of a model with {head.vocab_size} tokens and hidden states of"
            f" {eagle.target_hidden_size}, but this one has {target.vocab_size} and {target.hidden_size};"
            " use a head of this model"
        )
    eagle.layers_of(target.num_layers)
    return True


def mtp_head(target: ModelSpec, *, ranks: int = 1) -> ModelSpec:
    """The shape of the head for multi-token prediction in the checkpoint of `target`.

    Raises UnsupportedModel if it has none.
    """
    mtp, experts = target.mtp, target.experts
    if mtp is None:
        raise UnsupportedModel(
            f"this {target.architecture} has no head for multi-token prediction; use --speculative auto"
        )
    if experts is not None:
        dense = frozenset() if target.has_experts(mtp.index) else frozenset({0})
        experts = replace(experts, dense_layers=dense, parallel=1)
    return replace(
        target,
        num_layers=1,
        recurrent=None,
        experts=experts,
        mtp=replace(mtp, own_lm_head=ranks > 1 and not target.tied_embeddings),
        is_mtp_head=True,
        vision=None,
    )


def _require_whole_context(target: ModelSpec, head: str) -> None:
    """Raise UnsupportedModel if all layers have windows: a head uses the pages of the others."""
    if all(group.window is not None for group in target.kv_groups):
        raise UnsupportedModel(f"{target.architecture} cannot have {head}: all its layers have windows")
