"""Metrics and flags that the documents name exist; every scheduling flag is explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from router.config.flags.foreign_flags import TRANSLATIONS
from router.config.table import SETTINGS
from tests.unit.project.monitoring.metric_names import exported_metrics, metrics_in

DOCS = Path(__file__).resolve().parents[3] / "docs"
OWN_FLAGS = {setting.flag for setting in SETTINGS.values()}
OTHER_COMMANDS = re.compile(r"`(?:python -m benchmarks|router plan|--device)[^`]*`")
"""Command lines with flags of their own; a line that continues another's is given from --device on."""


def flags_in(page: str) -> set[str]:
    text = OTHER_COMMANDS.sub("", (DOCS / page).read_text())
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text))


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_every_metric_of_a_document_is_exported(page: Path) -> None:
    exported = exported_metrics()
    families = {re.sub(r"_(bucket|total)$", "", name) for name in exported}
    named = {name.rstrip("_") for name in metrics_in(page.read_text())}
    assert named <= exported | families


@pytest.mark.parametrize("page", ["scheduling.md", "tuning.md"])
def test_every_flag_of_a_document_is_accepted_or_explained_by_the_command_line(page: str) -> None:
    assert flags_in(page) <= OWN_FLAGS | set(TRANSLATIONS)


def test_every_scheduling_flag_is_explained() -> None:
    groups = ("batching", "scheduling", "settings of a role")
    flags = {setting.flag for setting in SETTINGS.values() if setting.option.group in groups}
    assert flags <= flags_in("scheduling.md") | flags_in("tuning.md")
