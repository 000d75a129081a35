"""Count which small changes of the code the tests notice.

    python scripts/mutants.py engine/sched kv_transfer/handoff --count 50 --seed 3

Each mutant changes one expression or statement in a copy of the tree: a comparison, boolean operator,
arithmetic, constant, condition, or returned value. The unit tests of its package run first, then the other
tests given. A mutant that all of them pass has survived: it is equivalent, a question of tuning, or a hole.
"""

from __future__ import annotations

import argparse
import ast
import copy
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parent.parent

_COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_CALCULATED: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
}


_MUTABLE: Final = (
    *(ast.Compare, ast.BoolOp, ast.BinOp, ast.AugAssign, ast.UnaryOp, ast.Constant),
    *(ast.IfExp, ast.If, ast.While, ast.Return),
)


@dataclass(frozen=True, slots=True)
class Mutant:
    path: Path
    """Relative to the root."""
    line: int
    before: str
    after: str
    source: str
    """The whole mutated file."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before} -> {self.after}"


def changed(node: ast.AST) -> ast.AST | None:
    """A copy of `node` that computes something else; None for a node that is left alone."""
    if not isinstance(node, _MUTABLE):
        return None
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[operator, *rest]) if type(operator) in _COMPARED:
            new.ops = [_COMPARED[type(operator)](), *rest]
        case ast.BoolOp(op=operator):
            new.op = ast.Or() if isinstance(operator, ast.And) else ast.And()
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in _CALCULATED:
            new.op = _CALCULATED[type(operator)]()
        case ast.UnaryOp(op=ast.Not()):
            return new.operand
        case ast.IfExp() | ast.If() | ast.While() if not isinstance(new.test, ast.Compare | ast.BoolOp):
            new.test = ast.UnaryOp(ast.Not(), new.test)
        case ast.Constant(value=bool(value)):
            new.value = not value
        case ast.Constant(value=int(value)):
            new.value = value + 1
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            new.value = ast.Constant(None)
        case _:
            return None
    return new


def _sites(tree: ast.Module) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Nodes that may change, with the field that holds them, in statements of functions and classes.

    Annotations, decorators, docstrings, messages of errors and log lines are left alone.
    """
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params", "keywords_"):
                continue
            for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
                if not isinstance(child, ast.AST) or isinstance(
                    child, ast.Raise | ast.Import | ast.JoinedStr
                ):
                    continue
                if isinstance(child, ast.Call) and "logger" in ast.unparse(child.func):
                    continue
                stack.append(child)
                if changed(child) is not None:
                    yield node, name, index


def mutant(tree: Path, path: Path, number: int) -> Mutant:
    """The mutant of the module's site with this number."""
    module = ast.parse((tree / path).read_text())
    parent, name, index = next(itertools.islice(_sites(module), number, None))
    held = getattr(parent, name)
    old = held if index is None else held[index]
    new = changed(old)
    assert new is not None
    if index is None:
        setattr(parent, name, new)
    else:
        held[index] = new
    before, after = (ast.unparse(ast.fix_missing_locations(n)).partition("\n")[0] for n in (old, new))
    return Mutant(path, old.lineno, before, after, ast.unparse(ast.fix_missing_locations(module)))


def sample(tree: Path, paths: list[Path], count: int, seed: int) -> Iterator[Mutant]:
    """Mutants of random modules, drawn by their number of sites to the power 0.6; at most 4 of a module."""
    chance = random.Random(seed)
    modules = [
        file.relative_to(tree)
        for path in (tree / path for path in paths)
        for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])
    ]
    sizes = {path: sum(1 for _ in _sites(ast.parse((tree / path).read_text()))) for path in modules}
    left = {path: chance.sample(range(size), min(size, 4)) for path, size in sizes.items()}
    for _ in range(count):
        rest = [path for path, numbers in left.items() if numbers]
        if not rest:
            return
        (path,) = chance.choices(rest, [sizes[path] ** 0.6 for path in rest])
        yield mutant(tree, path, left[path].pop())


def unit_tests(tree: Path, path: Path) -> list[str]:
    """The unit tests of a module: the nearest folder that mirrors its own; for the engine, also its own."""
    folder = path.parent
    while not (tree / "tests/unit" / folder).is_dir():
        folder = folder.parent
    tests = [str(Path("tests/unit") / folder)]
    if path.parts[0] == "engine" and folder != Path("engine"):
        tests += sorted(str(p.relative_to(tree)) for p in (tree / "tests/unit/engine").glob("test_*.py"))
    return tests


def noticed(tree: Path, tests: list[str], seconds: float) -> str | None:
    """How the tests notice the mutant in `tree`: "failed" or "too slow"; None: they pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "too slow"
    if process.returncode not in (0, 1, 2):
        raise SystemExit(f"pytest cannot run {' '.join(tests)}:\n{output[-2000:]}")
    return "failed" if process.returncode else None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--also", nargs="*", default=[], help="test files for mutants that unit tests pass")
    parser.add_argument("--seconds", type=float, default=90.0, help="for each run of tests")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(_ROOT, tree, ignore=shutil.ignore_patterns(".*", "results"), symlinks=True)
        for number, each in enumerate(sample(tree, options.paths, options.count, options.seed), start=1):
            original = (tree / each.path).read_text()
            (tree / each.path).write_text(each.source)
            how = noticed(tree, unit_tests(tree, each.path), options.seconds)
            if how is None and options.also:
                how = noticed(tree, options.also, options.seconds)
            (tree / each.path).write_text(original)
            counts[how or "survived"] += 1
            print(f"{number} {how or 'SURVIVED'} {each}", flush=True)
    print(", ".join(f"{kind}: {count}" for kind, count in counts.items()))


if __name__ == "__main__":
    main()
