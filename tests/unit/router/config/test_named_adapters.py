"""What --lora-modules takes."""

from __future__ import annotations

import json

import pytest

from router.config.flags.text_settings import WrongAdapters, adapters_of
from tests.unit.router.config.test_advice import problem

SQL = {"name": "sql", "path": "/adapters/sql"}


def test_names_and_folders_are_words_or_json() -> None:
    assert adapters_of("sql=/adapters/sql style='/my adapters/style'") == {
        "sql": "/adapters/sql",
        "style": "/my adapters/style",
    }
    assert adapters_of(json.dumps(SQL)) == {"sql": "/adapters/sql"}
    other = SQL | {"name": "style", "base_model_name": "llama"}
    assert adapters_of(json.dumps([SQL, other]), ["llama"]) == {
        "sql": "/adapters/sql",
        "style": "/adapters/sql",
    }
    assert adapters_of(None) == adapters_of("") == {}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("sql", "not NAME=PATH"),
        ("sql='/a", "quote it"),
        ("sql=/a sql=/b", "given twice"),
        (json.dumps([SQL, SQL]), "given twice"),
        ('{"name": "sql"}', "is not {"),
        (json.dumps(SQL | {"rank": 4}), "is not {"),
        ("[1", "is not {"),
        (json.dumps(SQL | {"base_model_name": "qwen"}), "sql is for qwen; this model is llama"),
    ],
)
def test_what_names_no_adapter_is_refused(setting: str, words: str) -> None:
    with pytest.raises(WrongAdapters, match=words):
        adapters_of(setting, ["llama"])


def test_an_adapter_of_another_model_is_a_problem_of_the_flags() -> None:
    text = json.dumps(SQL | {"base_model_name": "other"}).replace(" ", "")
    assert "sql is for other; this model is m" in problem(f"--enable-lora --lora-modules {text}")
