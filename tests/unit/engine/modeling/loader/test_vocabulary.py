"""Which folders have the same tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.modeling.loader.vocabulary import same_vocabulary

WORDS = {"a": 0, "b": 1}


def write(folder: Path, vocab: Any, added: list[dict[str, Any]] | None = None) -> Path:
    folder.mkdir()
    content = {"model": {"vocab": vocab}, "added_tokens": added or []}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("vocab", "added", "same"),
    [
        (WORDS, [], True),
        ([["a", -1.0], ["b", -2.0]], [], True),  # of a unigram model
        ({"a": 0}, [{"content": "b", "id": 1}], True),
        ({"a": 1, "b": 0}, [], False),
        (WORDS, [{"content": "<s>", "id": 2}], False),
    ],
)
def test_equal_ids_must_mean_equal_text(
    tmp_path: Path, vocab: Any, added: list[dict[str, Any]], same: bool
) -> None:
    one, other = write(tmp_path / "one", WORDS), write(tmp_path / "other", vocab, added)
    assert same_vocabulary(one, other) is same


def test_folders_without_a_tokenizer_are_not_known_to_be_alike(tmp_path: Path) -> None:
    assert not same_vocabulary(tmp_path, tmp_path)
