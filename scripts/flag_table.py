"""Writes the flag table of docs/flags.md from the router's settings: `python scripts/flag_table.py`."""

from __future__ import annotations

from enum import Enum
from itertools import groupby
from pathlib import Path

from router.config.table import SETTINGS, Setting

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "flags.md"
BEGIN, END = "<!-- flags: written by scripts/flag_table.py -->\n", "<!-- end of flags -->"


def table() -> str:
    lines = ["| flag | default | |", "| --- | --- | --- |"]
    for group, settings in groupby(SETTINGS.values(), key=lambda setting: setting.option.group):
        lines.append(f"| **{group}** | | |")
        lines += [_row(setting) for setting in settings]
    return "\n".join(lines) + "\n"


def with_table(document: str) -> str:
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


def _row(setting: Setting) -> str:
    return f"| `{setting.flag}` | {_default(setting)} | {setting.option.help.replace('|', '&#124;')} |"


def _default(setting: Setting) -> str:
    value = setting.default.value if isinstance(setting.default, Enum) else setting.default
    if value is None or value == "":
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{str(value).lower()}`"


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text()))
