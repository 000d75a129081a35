"""Whether two checkpoints have the same tokens. Does not import torch."""

from __future__ import annotations

import json
from pathlib import Path


def same_vocabulary(one: Path, other: Path) -> bool:
    """Whether equal token ids mean equal text in both folders, by their tokenizer.json.

    Their merges and templates may differ: a draft is token ids. False if a folder has no such file.
    """
    first, second = (_tokens(folder / "tokenizer.json") for folder in (one, other))
    return first is not None and first == second


def _tokens(file: Path) -> dict[str, int] | None:
    """Ids by token."""
    if not file.is_file():
        return None
    content = json.loads(file.read_text())
    vocab = content["model"]["vocab"]
    tokens = dict(vocab) if isinstance(vocab, dict) else {token: id for id, (token, _) in enumerate(vocab)}
    return tokens | {added["content"]: added["id"] for added in content.get("added_tokens", ())}
