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
    "encode_worker",
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
    "prefill_worker": frozenset({"common", "engine", "kv_transfer", "rpc"}),
    "decode_worker": frozenset({"common", "engine", "kv_transfer", "rpc"}),
    "encode_worker": frozenset({"common", "engine", "rpc"}),
    "worker": frozenset(
        {"common", "decode_worker", "encode_worker", "engine", "kv_transfer", "prefill_worker", "rpc"}
    ),
    "router": frozenset(
        {
            "common",
            "decode_worker",
            "encode_worker",
            "engine",
            "kv_transfer",
            "prefill_worker",
            "rpc",
            "worker",
        }
    ),
    "simulator": frozenset({"common", "engine", "router", "rpc"}),
    "baton": frozenset({"common", "engine", "router", "rpc", "worker"}),
    "benchmarks": frozenset(PRODUCT),
}
"""Which top-level packages each of them may import. docs/architecture.md shows the same as a table."""

NARROW: Mapping[str, frozenset[str]] = {
    "router.placement": frozenset({"common", "engine", "router.config.choices", "rpc"}),
    "simulator": frozenset({"common", "engine", "router.config.choices", "router.placement", "rpc"}),
}
"""All that these parts import: placement is pure, and the simulator takes nothing else of the router."""

ROOMS: Mapping[str, tuple[int, int]] = {"engine": (18, 9), "router": (8, 6)}
"""Number of rooms (folders and modules directly inside) of the two largest packages, and of their floors.
`pytest -s -k floors` draws them."""

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


def within(graph: Graph, package: str, depth: int) -> Graph:
    """Imports between rooms of `package` ("": the product). A room is the first `depth` parts of a name."""
    inside = f"{package}." if package else ""

    def room(name: str) -> str:
        return ".".join(name.split(".")[:depth])

    rooms: Graph = {}
    for importer, imported in graph.items():
        if importer.startswith(inside):
            others = {room(name) for name in imported if name.startswith(inside)}
            rooms.setdefault(room(importer), set()).update(others - {room(importer)})
    return rooms


def floors(graph: Graph) -> dict[str, int]:
    """For each room, 1 if it imports no other, else one more than the highest room that it imports."""
    found: dict[str, int] = {}
    for room in TopologicalSorter(graph).static_order():
        found[room] = 1 + max((found[below] for below in graph.get(room, ())), default=0)
    return found


def belongs(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    assert within(graph_of_the_product(), "", 1).get(package, set()) <= ALLOWED[package]


@pytest.mark.parametrize("part", NARROW)
def test_a_narrow_part_imports_no_more_than_it_says(part: str) -> None:
    used = {
        name
        for importer, imported in graph_of_the_product().items()
        if belongs(importer, [part])
        for name in imported
    }
    assert not {name for name in used if not belongs(name, NARROW[part] | {part})}


@pytest.mark.parametrize("package", ["", *PRODUCT])
def test_no_arrow_between_rooms_runs_up(package: str) -> None:
    rooms = within(graph_of_the_product(), package, 2 if package else 1)
    found = circle(rooms)
    assert not found, " imports ".join(reversed(found))


@pytest.mark.parametrize("package", ROOMS)
def test_the_rooms_and_floors_are_those_of_the_layout(package: str) -> None:
    of_rooms = floors(within(graph_of_the_product(), package, 2))
    drawing = "\n".join(f"{floor} {room}" for room, floor in sorted(of_rooms.items(), key=lambda at: -at[1]))
    print(f"{package}: {len(of_rooms)} rooms on {max(of_rooms.values())} floors\n{drawing}")
    assert (len(of_rooms), max(of_rooms.values())) == ROOMS[package], drawing


@pytest.mark.parametrize("upward", ["import a.upper", "from a import upper", "from a.upper import thing"])
def test_an_import_that_closes_a_circle_is_found(tmp_path: Path, upward: str) -> None:
    files = {"a.upper": "import a.lower", "a.lower": f"def late():\n    {upward}"}
    known = {name: tmp_path / f"{name}.py" for name in ("a", *files)}
    for name, path in known.items():
        path.write_text(files.get(name, ""))
    assert circle(imports(known))


def test_floors_are_counted_from_the_room_that_imports_nothing() -> None:
    files = {"a.top.x": {"a.low.y", "a.mid.z"}, "a.mid.z": {"a.low.y"}, "a.low.y": {"b.other"}}
    assert floors(within(files, "a", 2)) == {"a.low": 1, "a.mid": 2, "a.top": 3}
    files["a.low.y"].add("a.mid.z")
    assert circle(within(files, "a", 2))
