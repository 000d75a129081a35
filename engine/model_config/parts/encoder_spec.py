"""What BERT and its relatives have besides layers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    positions: int
    """Learned positions."""
    first_position: int = 0
    """Position of a prompt's first token: RoBERTa's positions begin after that of its padding token."""
    token_types: int = 1
    """Kinds of tokens, which have embeddings too. Token i of kind t has the id i + t * words."""
    head_modules: tuple[str, str] = ("pooler.dense", "classifier")
    """Modules of a classifier in checkpoints."""
