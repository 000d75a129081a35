"""The README says what the code says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from benchmarks import (
    adapters,
    busy_cores,
    compare,
    conversations,
    decisions,
    embeddings,
    images,
    load,
    modes,
    offline,
    replay,
    router_throughput,
    simulate,
    speculation,
    start_up,
    weight_update,
)
from benchmarks import simulated_cluster as cluster
from router.command import drain_node
from router.command.admin import client as admin
from router.command.audit import replay as replay_log
from router.command.audit import verify
from router.command.client import batch, chat, top
from router.command.doctor import command as doctor
from router.config.flags.foreign_flags import TRANSLATIONS
from router.config.table import SETTINGS
from simulator.planner import command as plan

ROOT = Path(__file__).resolve().parents[3]
LONGEST_CELL = 36
"""In words."""
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_flag_table_is_the_routers_own() -> None:
    spec = importlib.util.spec_from_file_location("flag_table", ROOT / "scripts" / "flag_table.py")
    assert spec
    assert spec.loader
    flag_table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(flag_table)
    document = (ROOT / "docs" / "flags.md").read_text()
    assert flag_table.with_table(document) == document, "run: python scripts/flag_table.py"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_flag_that_is_mentioned_exists(document: Path) -> None:
    others = {"--rate", "--rates", "--requests", "--cpu", "--help", "--config", "--cluster", "--no-restart"}
    commands = (
        *(batch, chat, top, plan, doctor, drain_node, verify, replay_log),
        *(cluster, simulate, compare, conversations, load, modes, offline, replay),
        *(
            adapters,
            busy_cores,
            decisions,
            embeddings,
            images,
            router_throughput,
            speculation,
            start_up,
            weight_update,
        ),
    )
    for command in commands:
        others |= {flag for action in command.make_parser()._actions for flag in action.option_strings}
    for action in admin.make_parser()._actions:
        for command in action.choices.values() if isinstance(action.choices, dict) else ():
            others |= {flag for action in command._actions for flag in action.option_strings}
    others |= TRANSLATIONS.keys()  # of other servers
    others |= {"--adapters", "--points"}  # of benchmarks.gpu
    others |= {"--extra-index-url", "--local-dir", "--no-deps", "--shm-size"}  # of pip, hf and docker
    others |= {"--address", "--head", "--include-dashboard", "--num-cpus"}  # of ray
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", document.read_text()))
    assert mentioned <= {setting.flag for setting in SETTINGS.values()} | others


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_within_the_repository_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", document.read_text())
    inside = [link for link in links if "://" not in link]
    assert inside
    assert all((document.parent / link).exists() for link in inside)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_anchor_of_a_link_is_a_heading(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", document.read_text())
    missing = [
        f"{page}#{anchor}"
        for page, anchor in links
        if anchor not in anchors(document.parent / page if page else document)
    ]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_module_that_is_named_exists(document: Path) -> None:
    modules = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if ".venv" not in path.parts]
    named = re.findall(r"`([\w/]+\.py)`", document.read_text())
    assert not [name for name in named if not any(f"/{module}".endswith(f"/{name}") for module in modules)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_cell_of_a_table_is_a_phrase(document: Path) -> None:
    rows = [line for line in document.read_text().splitlines() if line.startswith("|")]
    cells = [cell for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    assert not [cell for cell in cells if len(cell.split()) > LONGEST_CELL]


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
