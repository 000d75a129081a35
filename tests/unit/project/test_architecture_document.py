"""docs/architecture.md names every folder and file of the packages, and functions that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SECTIONS = {
    "`router/`": ("router",),
    "`worker/`": ("worker",),
    "`prefill_worker/`, `decode_worker/`, `encode_worker/`": (
        "prefill_worker",
        "decode_worker",
        "encode_worker",
    ),
    "`engine/`": ("engine",),
    "`kv_transfer/`": ("kv_transfer",),
    "Others": ("simulator", "rpc", "baton", "common"),
}
"""The packages of each section, by its heading."""
NAME = re.compile(r"`([\w]+(?:/|\.py))`")


def names(heading: str) -> set[str]:
    """Folders (`name/`) and modules (`name.py`) that the section names."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    return set(NAME.findall(text.split(f"### {heading}\n")[1].split("\n#")[0]))


def folders(path: Path) -> set[str]:
    return {f"{each.name}/" for each in path.iterdir() if each.is_dir() and any(each.rglob("*.py"))}


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_folder_and_module_of_a_package_is_named(heading: str) -> None:
    for package in SECTIONS[heading]:
        path = ROOT / package
        modules = {module.name for module in path.glob("*.py")} - {"__init__.py"}
        missing = (folders(path) | modules) - names(heading)
        assert not missing, f"name in docs/architecture.md, of {package}/: {sorted(missing)}"


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_name_is_that_of_a_folder_or_a_module(heading: str) -> None:
    paths = [each for package in SECTIONS[heading] for each in (ROOT / package).rglob("*")]
    there = {f"{each.name}/" if each.is_dir() else each.name for each in paths}
    there |= {f"{package}/" for package in SECTIONS[heading]}
    assert names(heading) <= there


def test_the_functions_on_the_way_of_a_request_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    ways = text.split("### A request's way\n")[1].split("### Timeline\n")[0]
    named = re.findall(r"`(\w+)\.(\w+)`", ways)
    paths = [path for room in ("router", "worker", "engine") for path in (ROOT / room).rglob("*.py")]
    modules = [path.read_text() for path in paths]
    missing = {
        f"{owner}.{name}"
        for owner, name in named
        if not any(re.search(rf"class {owner}\b", module) and f"def {name}(" in module for module in modules)
    }
    assert len(named) > 20
    assert not missing


@pytest.mark.parametrize("room", ["router", "engine"])
def test_the_folders_of_each_room_are_named(room: str) -> None:
    for path in (ROOT / room).iterdir():
        if path.is_dir():
            assert folders(path) <= names(f"`{room}/`"), path.name


@pytest.mark.parametrize("way", ["### A request's way\n", "### A token's way\n"])
def test_a_way_has_at_most_twenty_functions(way: str) -> None:
    rows = (ROOT / "docs" / "architecture.md").read_text().split(way)[1].split("\n\n")[1].splitlines()[2:]
    functions = [name for row in rows for name in re.findall(r"`([\w.]+)`", row.split("|")[2])]
    assert 10 < len(functions) <= 20, functions
