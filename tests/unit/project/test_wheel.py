"""What the wheel installs: the product, with nothing that needs more than its dependencies."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN = {
    *("baton", "common", "decode_worker", "encode_worker", "engine", "kv_transfer", "prefill_worker"),
    *("router", "rpc", "simulator", "worker"),
}
OPTIONAL = {
    "PIL",
    *("boto3", "botocore", "msgpack", "zmq", "flashinfer", "ucxx", "rmm", "libucx", "triton", "cuda"),
    *("pydantic_core", "transformers"),
}
"""Imported where an extra, or torch for CUDA, has installed them; pydantic and its core are one version."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    """Built from a copy, since a build leaves files behind."""
    copy, out = tmp_path_factory.mktemp("copy") / "baton", tmp_path_factory.mktemp("dist")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.split():
        if not name.startswith(("tests/", "docs/", "benchmarks/results/")) and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    build = f"import setuptools.build_meta as b; print(b.build_wheel({str(out)!r}))"
    subprocess.run([sys.executable, "-c", build], cwd=copy, check=True, capture_output=True)
    [path] = out.glob("*.whl")
    return ZipFile(path)


def test_the_wheel_has_the_packages_of_the_product_and_no_others(wheel: ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == OWN


def test_files_that_are_no_modules_are_in_the_wheel(wheel: ZipFile) -> None:
    names = set(wheel.namelist())
    for folder, pattern in (("engine/kernels/cpu", "*.cpp"), ("router/api/page/static", "*")):
        files = [str(path.relative_to(ROOT)) for path in (ROOT / folder).glob(pattern)]
        assert files
        assert set(files) <= names


def test_every_import_of_the_wheel_is_declared(wheel: ZipFile) -> None:
    undeclared = set()
    declared = {_normal(re.split(r"[^\w.-]", line)[0]) for line in PROJECT["dependencies"]}
    installed = packages_distributions()
    for name in wheel.namelist():
        if not name.endswith(".py"):
            continue
        for top in set(_imported(wheel.read(name).decode())) - OWN - OPTIONAL - sys.stdlib_module_names:
            owners = {_normal(owner) for owner in installed.get(top, ())}
            if not owners & declared:
                undeclared.add((name, top))
    assert not undeclared


def _imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).partition(".")[0]


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()
