"""Rows of checkpoints that people serve; `python -m tests.integration.models.checkpoints.table` has all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.integration.models.checkpoints.parts import Row
from tests.integration.models.checkpoints.rows import FORMATS, MODELS, ROWS
from tests.integration.models.checkpoints.table import lines, result

_DOCUMENT: Final = Path(__file__).resolve().parents[4] / "docs" / "models.md"
_SUMMARY: Final = re.compile(r"\d+ of 84 load, \d+ of 29 load, \d+ of 29 call tools in their format")
_REFUSED: Final = {72, 81, 83}
"""Rows of formats and files of which a part is refused."""


def test_rows_are_numbered_and_29_matter_most() -> None:
    assert [row.number for row in ROWS] == list(range(1, 85))
    assert sum(row.matters for row in ROWS) == 29


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.checkpoints)
def test_formats_and_files_load_or_are_refused_by_name(row: Row) -> None:
    found = result(row)
    assert found.loads == (row.number not in _REFUSED), found.refused


@pytest.mark.parametrize("number", [5, 12, 14, 16, 21, 30, 31])
def test_models_that_matter_load_and_call_tools_or_are_refused_by_name(number: int) -> None:
    found = result(MODELS[number - 1])
    assert found.loads == found.calls_tools == (number != 14), found.refused
    assert number != 14 or "indexer" in found.refused[0]


@pytest.mark.thorough
def test_the_document_states_how_many_load() -> None:
    *_, printed = lines(map(result, ROWS))
    stated = _SUMMARY.search(" ".join(_DOCUMENT.read_text().split()))
    assert stated is not None
    assert stated[0] == printed
