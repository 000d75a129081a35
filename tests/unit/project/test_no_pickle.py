"""Nothing that comes over a socket is ever unpickled: that would run whatever the sender likes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = (
    "rpc",
    "kv_transfer",
    "worker",
    "prefill_worker",
    "decode_worker",
    "encode_worker",
    "router",
    "engine",
)
UNSAFE_MODULES = {
    "pickle",
    "cloudpickle",
    "_pickle",
    "dill",
    "marshal",
    "shelve",
    "multiprocessing",
    "joblib",
}
UNSAFE_CALLS = {
    "get_serialized_descs",  # NIXL's: pickles
    "deserialize_descs",
    "eval",
    "exec",
}


def sources() -> list[Path]:
    return [file for folder in PRODUCT for file in sorted((ROOT / folder).rglob("*.py"))]


def unsafe(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names if alias.name.split(".")[0] in UNSAFE_MODULES)
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in UNSAFE_MODULES:
                yield module
            case ast.Call(func=ast.Name(name) | ast.Attribute(attr=name), keywords=keywords):
                if name in UNSAFE_CALLS and not _is_method(node, "eval"):
                    yield name
                given = {keyword.arg for keyword in keywords}
                if name == "load" and _is_on(node, "torch") and "weights_only" not in given:
                    yield "torch.load"
                if name == "load" and _is_on(node, "yaml"):
                    yield "yaml.load"


def _is_method(call: ast.Call, name: str) -> bool:
    """`model.eval()` is torch's, and harmless."""
    return isinstance(call.func, ast.Attribute) and call.func.attr == name


def _is_on(call: ast.Call, module: str) -> bool:
    func = call.func
    return isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == module


@pytest.mark.parametrize("file", sources(), ids=lambda file: str(file.relative_to(ROOT)))
def test_no_module_can_unpickle(file: Path) -> None:
    assert not list(unsafe(ast.parse(file.read_text())))


@pytest.mark.parametrize(
    "code",
    ["import pickle", "from pickle import loads", "agent.deserialize_descs(x)", "torch.load(f)", "eval(x)"],
)
def test_the_search_finds_what_it_looks_for(code: str) -> None:
    assert list(unsafe(ast.parse(code)))
