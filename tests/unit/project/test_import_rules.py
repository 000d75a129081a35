"""Imports point down only: no module and no package imports, even indirectly, what imports it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = (
    "baton",
    "benchmarks",
    "common",
    "decode_worker",
    "engine",
    "kv_transfer",
    "prefill_worker",
    "router",
    "rpc",
    "simulator",
    "worker",
)

ALLOWED: Mapping[str, frozenset[str]] = {
    "common": frozenset(),
    "rpc": frozenset(),
    "engine": frozenset({"common"}),
    "kv_transfer": frozenset({"common"}),
    "worker.session": frozenset({"common", "engine", "kv_transfer", "rpc"}),
    "prefill_worker": frozenset({"common", "engine", "kv_transfer", "rpc", "worker.session"}),
    "decode_worker": frozenset({"common", "engine", "kv_transfer", "rpc", "worker.session"}),
    "worker": frozenset({"common", "decode_worker", "engine", "kv_transfer", "prefill_worker", "rpc"}),
    "router.config.choices": frozenset({"common"}),
    "router.placement": frozenset({"common", "engine", "router.config.choices", "rpc"}),
    "simulator": frozenset({"common", "engine", "router.config.choices", "router.placement", "rpc"}),
    "router": frozenset(PRODUCT) - {"baton", "benchmarks"},
    "baton": frozenset({"common", "engine", "router", "rpc", "worker"}),
    "benchmarks": frozenset(PRODUCT) - {"baton"},
}
"""Which packages each of them may import: the top-level ones, and parts of them that lie on another floor.
docs/architecture.md shows the same as a table."""

Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    files = (path for name in PRODUCT for path in (ROOT / name).rglob("*.py") if "_pb2" not in path.name)
    return {_name(path): path for path in files}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(known: Mapping[str, Path]) -> Graph:
    """For each module, the modules of this repository that it imports, anywhere in the file."""
    return {name: set(_imported(ast.parse(path.read_text()), known)) for name, path in known.items()}


def _imported(tree: ast.AST, known: Mapping[str, Path]) -> Iterable[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


@cache
def graph_of_the_product() -> Graph:
    """Read once: parsing every file takes most of a second."""
    return imports(modules())


def by_package(graph: Graph, known: Mapping[str, Path]) -> Graph:
    """The same between packages. A module that lies beside packages stands for itself."""
    has_packages = {path.parent.parent for path in known.values() if path.name == "__init__.py"}

    def package(name: str) -> str:
        folder = known[name].parent
        return name if folder in has_packages else _name(folder / "__init__.py")

    packages: Graph = {}
    for importer, imported in graph.items():
        targets = packages.setdefault(package(importer), set())
        targets |= {package(name) for name in imported} - {package(importer)}
    return packages


def circle(graph: Graph) -> list[str]:
    """One circle in the graph; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [str(name) for name in error.args[1]]
    return []


def test_no_module_imports_itself_by_way_of_others() -> None:
    found = circle(graph_of_the_product())
    assert not found, " imports ".join(reversed(found))


def test_no_package_imports_itself_by_way_of_others() -> None:
    found = circle(by_package(graph_of_the_product(), modules()))
    assert not found, " imports ".join(reversed(found))


def floor(module: str) -> str:
    """The package of the table that the module belongs to, the innermost one."""
    parts = module.split(".")
    return next(name for n in range(len(parts), 0, -1) if (name := ".".join(parts[:n])) in ALLOWED)


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    used = {
        floor(name)
        for importer, imported in graph_of_the_product().items()
        if floor(importer) == package
        for name in imported
    }
    allowed = ALLOWED[package] | {package}
    assert not {name for name in used if not {name, name.partition(".")[0]} & allowed}


@pytest.mark.parametrize("upward", ["import a.upper", "from a import upper", "from a.upper import thing"])
def test_an_import_that_closes_a_circle_is_found(tmp_path: Path, upward: str) -> None:
    files = {"a.upper": "import a.lower", "a.lower": f"def late():\n    {upward}"}
    known = {name: tmp_path / f"{name}.py" for name in ("a", *files)}
    for name, path in known.items():
        path.write_text(files.get(name, ""))
    assert circle(imports(known))
