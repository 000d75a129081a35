"""Writes the tables of docs/coming_from.md from those in the code: `python scripts/coming_from_tables.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from router.api.fields import Refused
from router.api.http.foreign_routes import ADVICE
from router.api.openai.foreign_fields import ForeignChatFields, ForeignCompletionFields, ForeignFields
from router.command.words import ANSWERS
from router.config.flags.foreign_flags import TRANSLATIONS, Renamed, Switch, UnavailableFlag
from router.config.table import SETTINGS

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "coming_from.md"
_BODIES: dict[str, type[BaseModel]] = {
    "both": ForeignFields,
    "chat": ForeignChatFields,
    "completions": ForeignCompletionFields,
}


def with_tables(document: str) -> str:
    for name, lines in _tables().items():
        begin, end = f"<!-- {name}: written by scripts/coming_from_tables.py -->\n", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        table = "\n".join(lines)
        document = pattern.sub(lambda _, text=f"{begin}{table}\n{end}": text, document)  # type: ignore[misc]
    return document


def _tables() -> dict[str, list[str]]:
    return {
        "commands": _table(("word", "here"), _by_advice(ANSWERS)),
        "names": _table(("flag here", "accepted too"), _names()),
        "values": _table(("flag", "value", "here"), _values()),
        "switches": _table(("flag", "here"), _switches()),
        "flags": _table(("flags", "here"), _by_advice(_reasons())),
        "fields": _table(("field", "of", "passes with", "otherwise"), sorted(_fields())),
        "routes": _table(("routes", "the answer says"), _by_advice(ADVICE)),
    }


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [header, ("---",) * len(header), *rows]
    return [f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines]


def _by_advice(names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    together: dict[str, list[str]] = {}
    for name, advice in names.items():
        together.setdefault(advice, []).append(name)
    for advice, same in together.items():
        yield _code(same), advice


def _names() -> Iterator[tuple[str, str]]:
    for setting in SETTINGS.values():
        if setting.option.aliases:
            yield f"`{setting.flag}`", _code(setting.option.aliases)


def _values() -> Iterator[tuple[str, str, str]]:
    for flag, translation in TRANSLATIONS.items():
        if isinstance(translation, Renamed) and flag.startswith("--"):
            meanings = {
                value: _meaning(translation.flag, ours) for value, ours in translation.values.items() if value
            }
            for values, meaning in _by_advice(meanings):
                yield f"`{flag}`", values, meaning


def _switches() -> Iterator[tuple[str, str]]:
    switches = {flag: found.on for flag, found in TRANSLATIONS.items() if isinstance(found, Switch)}
    return _by_advice(
        {flag: " ".join(map("`{}`".format, on)) or "always on" for flag, on in switches.items()}
    )


def _meaning(flag: str, value: str | UnavailableFlag) -> str:
    if isinstance(value, UnavailableFlag):
        return value.reason
    return f"`{flag} {value}`" if value else "the default"


def _reasons() -> dict[str, str]:
    return {flag: found.reason for flag, found in TRANSLATIONS.items() if isinstance(found, UnavailableFlag)}


def _fields() -> Iterator[tuple[str, str, str, str]]:
    for of, body in _BODIES.items():
        for name, field in body.model_fields.items():
            (mark,) = (each for each in field.metadata if isinstance(each, Refused))
            yield f"`{name}`", of, ", ".join(map(_json, mark.neutral)), mark.reason


def _json(value: Any) -> str:
    text = {"True": "true", "False": "false", "": '""'}.get(str(value), str(value))
    return f"`{text}`"


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text()))
