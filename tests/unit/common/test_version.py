"""The build: equal exactly for equal code."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.version import VERSION, build, digest_of


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A small installation."""
    for name in ("router", "engine/kernels", "tests", "router/__pycache__"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "router" / "a.py").write_text("a = 1\n")
    (tmp_path / "engine" / "kernels" / "k.cpp").write_text("int a;\n")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("router/a.py", "a = 2\n"),
        ("router/b.py", ""),
        ("engine/kernels/k.cpp", "int b;\n"),
    ],
)
def test_code_that_differs_is_another_build(code: Path, file: str, text: str) -> None:
    before = digest_of(code)
    (code / file).write_text(text)
    assert digest_of(code) != before


def test_a_file_that_moves_is_another_build(code: Path) -> None:
    before = digest_of(code)
    (code / "router" / "a.py").rename(code / "engine" / "a.py")
    assert digest_of(code) != before


@pytest.mark.parametrize("file", ["router/__pycache__/a.pyc", "tests/test_a.py", "README.md"])
def test_files_that_do_not_run_are_not_part_of_the_build(code: Path, file: str) -> None:
    before = digest_of(code)
    (code / file).write_text("other")
    assert digest_of(code) == before


def test_the_build_names_the_version() -> None:
    assert build().startswith(f"{VERSION} (")
