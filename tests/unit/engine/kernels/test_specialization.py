"""Triton compiles a kernel again for an integer that is 1, a multiple of 16, or neither.

Integers that differ between the steps of one model would have it compile while requests wait, so kernels
exclude them. What is the same in all steps may be specialised: strides, of which loads gain, and layouts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
FILES = [
    file
    for package in ("engine", "kv_transfer")
    for file in sorted((ROOT / package).rglob("*.py"))
    if "@triton.jit" in file.read_text()
]
SAME_IN_ALL_STEPS = {
    "window",
    "x_scale_row",
    "x_scale_group",
    *("weights", "num_features", "num_columns", "split_depth"),  # of one weight
    # Not integers, for which Triton does not specialise.
    *("eps", "scale", "key_scale", "value_scale", "stored_value_scale", "cap"),
}


def launched() -> set[str]:
    """Names of functions that some module launches with a grid, in place of calling them."""
    text = "\n".join(
        file.read_text() for package in ("engine", "kv_transfer") for file in (ROOT / package).rglob("*.py")
    )
    return set(re.findall(r"\b(\w+)\[[^\]]+\]\(\n", text)) | set(re.findall(r"\b(\w+)\[[^\]=]+\]\(", text))


def kernels() -> Iterator[tuple[str, ast.FunctionDef, str]]:
    names = launched()
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name in names:
                [decorator] = [ast.unparse(d) for d in node.decorator_list]
                yield f"{file.relative_to(ROOT)}:{node.name}", node, decorator


def unspecialised(decorator: str) -> set[str]:
    found = re.search(r"do_not_specialize=(\[.*?\])", decorator)
    return set(ast.literal_eval(found.group(1))) if found else set()


@pytest.mark.parametrize(("kernel", "decorator"), [pytest.param(k, d, id=i) for i, k, d in kernels()])
def test_no_kernel_is_compiled_again_for_the_size_of_a_step(kernel: ast.FunctionDef, decorator: str) -> None:
    numbers = {a.arg for a in kernel.args.args if a.annotation is None and not a.arg.endswith("_ptr")}
    differ = {name for name in numbers if not name.endswith("stride")} - SAME_IN_ALL_STEPS
    assert differ <= unspecialised(decorator)
    assert unspecialised(decorator) <= numbers


def test_all_kernels_are_found() -> None:
    assert len([*kernels()]) >= 40
