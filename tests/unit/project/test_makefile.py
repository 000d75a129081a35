"""`make test-all` runs every test that a change must pass."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
ELSEWHERE = {"gpu", "cluster", "clients"}
"""Folders of tests/ with targets of their own."""


def test_every_test_that_is_marked_alone_is_in_a_folder_of_the_second_part() -> None:
    [named] = re.findall(r"^ALONE := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    folders = [ROOT / folder for folder in named.split()]
    marked = {
        file
        for file in (ROOT / "tests").rglob("test_*.py")
        if file.relative_to(ROOT / "tests").parts[0] not in ELSEWHERE
        and re.search(r"pytest\.mark\.alone\b", file.read_text())
    } - {Path(__file__)}
    assert marked
    assert not [file for file in marked if not any(file.is_relative_to(folder) for folder in folders)]
    assert not [folder for folder in folders if not any(file.is_relative_to(folder) for file in marked)]
