"""docs/api.md and the request models say of every field of the original APIs what becomes of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from openai.types import completion_create_params, decision_create_params
from openai.types.chat import completion_create_params as chat_completion_create_params
from openai.types.responses import response_create_params
from pydantic import BaseModel

from router.api.decisions.bodies import DecisionBody
from router.api.openai.requests import ChatCompletionBody, CompletionBody
from router.api.openai.responses_api.requests import ResponsesBody

ROOT = Path(__file__).resolve().parents[3]


def test_the_tables_are_those_of_the_request_models() -> None:
    spec = importlib.util.spec_from_file_location("api_table", ROOT / "scripts" / "api_table.py")
    assert spec
    assert spec.loader
    api_table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(api_table)
    document = (ROOT / "docs" / "api.md").read_text()
    assert api_table.with_tables(document) == document, "run: python scripts/api_table.py"


@pytest.mark.parametrize(
    ("body", "params"),
    [
        (CompletionBody, completion_create_params),
        (ChatCompletionBody, chat_completion_create_params),
        (ResponsesBody, response_create_params),
    ],
)
def test_every_field_of_the_openai_package_is_listed(body: type[BaseModel], params: object) -> None:
    known = set()
    for name in ("CompletionCreateParamsBase", "ResponseCreateParamsBase"):
        known |= set(getattr(getattr(params, name, None), "__annotations__", ()))
    assert len(known) > 10
    assert known - body.model_fields.keys() == set()
    assert "stream" in body.model_fields


def test_every_field_of_a_decision_is_listed() -> None:
    known = decision_create_params.DecisionCreateParams.__annotations__.keys()
    assert len(known) > 5
    assert known - DecisionBody.model_fields.keys() == set()
