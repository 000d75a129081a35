"""benchmarks/RESULTS.md names every file of benchmarks/results, and no other."""

from __future__ import annotations

import re
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def test_every_result_has_a_row() -> None:
    table = (BENCHMARKS / "RESULTS.md").read_text()
    named: set[str] = set()
    for row in re.findall(r"^\| (`[^|]+`) \|", table, re.MULTILINE):
        stem = ""
        for name in re.findall(r"`([^`]+)`", row):
            stem = stem if name.startswith(".") else Path(name).stem
            named.add(stem + name if name.startswith(".") else name)
    assert named == {path.name for path in (BENCHMARKS / "results").iterdir()}


def test_every_page_that_cites_a_result_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)", (BENCHMARKS / "RESULTS.md").read_text())
    assert links
    assert all((BENCHMARKS / link).exists() for link in links)
