"""Writes the tables of docs/api.md from the request models: `python scripts/api_table.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, RootModel
from pydantic.fields import FieldInfo

from router.api.apis import APIS
from router.api.fields import Refused, WithoutEffect

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "api.md"
BEGIN, END = "<!-- fields: written by scripts/api_table.py -->\n", "<!-- end of fields -->"


def tables() -> str:
    """A table for each body; endpoints with the bodies of others, or fewer of their fields, have none."""
    bodies: dict[type[BaseModel], str] = {}
    for endpoint in (endpoint for api in APIS for endpoint in api.endpoints):
        body = endpoint.body
        if body is not None and not any(issubclass(other, body) for other in (*bodies, RootModel)):
            bodies[body] = endpoint.path
    return "\n".join(_table(path, body) for body, path in bodies.items())


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
