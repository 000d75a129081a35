"""Writes the tables of docs/api.md from the request models: `python scripts/api_table.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from router.api.anthropic.requests import MessagesBody
from router.api.fields import Refused, WithoutEffect
from router.api.openai.requests import ChatCompletionBody, CompletionBody
from router.api.openai.responses_api.requests import ResponsesBody
from router.api.openai.tokenize import DetokenizeBody, TokenizeBody

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "api.md"
BEGIN, END = "<!-- fields: written by scripts/api_table.py -->\n", "<!-- end of fields -->"
BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatCompletionBody,
    "/v1/completions": CompletionBody,
    "/v1/responses": ResponsesBody,
    "/v1/messages": MessagesBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}


def tables() -> str:
    return "\n".join(_table(path, body) for path, body in BODIES.items())


def with_tables(document: str) -> str:
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + tables() + END + after


def _table(path: str, body: type[BaseModel]) -> str:
    rows = sorted(_rows(body))
    lines = [f"| {name} | {state} | {text} |" for _, name, state, text in rows]
    return "\n".join([f"### POST {path}\n", "| field | | |", "| --- | --- | --- |", *lines]) + "\n"


def _rows(body: type[BaseModel]) -> Iterator[tuple[int, str, str, str]]:
    for name, field in body.model_fields.items():
        shown = f"`{field.alias or name}`"
        match next((mark for mark in field.metadata if isinstance(mark, Refused | WithoutEffect)), None):
            case None:
                yield 0, shown, "supported", _description(field)
            case WithoutEffect(reason):
                yield 1, shown, "no effect", reason
            case Refused(reason, neutral):
                allowed = " or ".join(f"`{_json(value)}`" for value in neutral)
                yield 2, shown, "refused", reason + (f"; {allowed} is accepted" if allowed else "")


def _description(field: FieldInfo) -> str:
    return " ".join((field.description or "").split()).replace("|", "&#124;")


def _json(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text()))
