"""docs/troubleshooting.md quotes errors that the code prints."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = ("baton", "common", "engine", "kv_transfer", "router", "worker")
GAP = "…"
"""Stands for what a message inserts."""


def quoted() -> list[str]:
    """Quotations of each row: the text in backticks of the column "error", "message" or "symptom" that has
    spaces.
    """
    document = (ROOT / "docs" / "troubleshooting.md").read_text()
    found, column = [], 0
    for line in document.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if cells[0] in ("error", "status", "symptom"):  # the header
            column = int(cells[0] == "status")
        elif line.startswith("| ") and (texts := re.findall(r"`([^`]+)`", cells[column])):
            found += [text for text in texts if " " in text]
    return found


@cache
def printed() -> str:
    """Every text of the product's code, with GAP for what is inserted; one a line."""
    texts = []
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = [part.value if isinstance(part, ast.Constant) else GAP for part in node.values]
                    texts.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value)
    return "\n".join(texts)


@pytest.mark.parametrize("text", quoted())
def test_every_quoted_error_is_in_the_code(text: str) -> None:
    assert text in printed()


def test_the_page_quotes_errors_of_all_its_tables() -> None:
    assert len(quoted()) > 40
