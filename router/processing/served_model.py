"""What the frontends know of the model that is served."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["ServedModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    name: str
    """What clients call it: --served-model-name."""
    path: Path
    """The checkpoint's folder; tokenizer.json and the chat template are read from it."""
    mode: str
    """"mixed" or "disagg"."""
    max_model_len: int
    """Prompt and output together, in tokens."""
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    prefill_workers: int = 0
    decode_workers: int = 1
