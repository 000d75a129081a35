"""A docstring begins with its head noun or a verb, so that it can be read without the code above it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = (
    "baton",
    "benchmarks",
    "common",
    "decode_worker",
    "encode_worker",
    "engine",
    "examples",
    "kv_transfer",
    "prefill_worker",
    "router",
    "rpc",
    "scripts",
    "simulator",
    "tests",
    "worker",
)
HEADLESS = re.compile(r"(Of|By|Those|That|Who)\b")


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each string that stands alone: also those after attributes."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.value.value.strip()


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_begin_with_a_noun_or_a_verb(package: str) -> None:
    files = [path for path in (ROOT / package).rglob("*.py") if "_pb2" not in path.name]
    headless = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]}"
        for path in files
        for line, text in docstrings(path.read_text())
        if HEADLESS.match(text)
    ]
    assert files
    assert not headless, "\n".join(headless)


def test_a_docstring_without_a_head_is_found() -> None:
    (found,) = docstrings('size: int\n"""Of the pool."""')
    assert HEADLESS.match(found[1])
