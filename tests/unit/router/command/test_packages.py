"""Other distributions that have a package with the name of one of Baton's are detected."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from router.command.preflight import shadowed_packages


def test_baton_finds_its_own_packages() -> None:
    assert list(shadowed_packages()) == []


def test_a_package_imported_from_another_folder_is_reported(tmp_path: Path) -> None:
    other = ModuleSpec("engine", None, origin=str(tmp_path / "engine" / "__init__.py"))
    (message,) = shadowed_packages(lambda name: other if name == "engine" else find_spec(name))
    assert str(tmp_path) in message
    assert "virtual environment" in message


def test_a_namespace_package_and_a_missing_one_are_reported() -> None:
    found = {"worker": ModuleSpec("worker", None), "rpc": None}
    assert len(list(shadowed_packages(lambda name: found[name] if name in found else find_spec(name)))) == 2
