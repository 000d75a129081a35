"""The product imports only what its distribution declares, so that a plain installation has all of it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions, requires

import pytest

from tests.unit.project.test_import_rules import PRODUCT, ROOT, modules

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = [name for name in PROJECT["optional-dependencies"] if name != "dev"]


def names(requirements: Iterable[str]) -> Iterator[str]:
    """Names of distributions, without those that only their extras need."""
    for requirement in requirements:
        if "extra ==" not in requirement:
            yield re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")


def declared() -> set[str]:
    """The dependencies, those of the extras for users, and what these depend on themselves."""
    first = {*names(PROJECT["dependencies"])}
    for extra in EXTRAS:
        first |= {*names(PROJECT["optional-dependencies"][extra])}
    installed = {
        name.lower().replace("_", "-") for found in packages_distributions().values() for name in found
    }
    return first.union(*(names(requires(name) or ()) for name in first & installed))


def imported() -> set[str]:
    """Top-level names from other distributions, wherever in a file of the product they are imported."""
    found: set[str] = set()
    for name, path in modules().items():
        if not name.startswith("benchmarks"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - {*PRODUCT}


@pytest.mark.parametrize("module", sorted(imported()))
def test_an_imported_package_is_a_dependency(module: str) -> None:
    distributions = packages_distributions().get(module)
    if distributions is None:
        pytest.skip("not installed here")
    assert {name.lower().replace("_", "-") for name in distributions} & declared()
