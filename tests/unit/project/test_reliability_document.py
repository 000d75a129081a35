"""docs/handoff.md draws the state machines that run; the tests that docs/reliability.md names exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_state_diagrams_are_the_tables() -> None:
    spec = importlib.util.spec_from_file_location("state_diagrams", ROOT / "scripts" / "state_diagrams.py")
    assert spec
    assert spec.loader
    state_diagrams = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(state_diagrams)
    document = (ROOT / "docs" / "handoff.md").read_text()
    assert state_diagrams.with_diagrams(document) == document, "run: python scripts/state_diagrams.py"


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+\.py)`", (ROOT / "docs" / "reliability.md").read_text()))
    assert named
    assert named <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}
