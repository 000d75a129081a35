"""Weight files that a download or a copy has left incomplete."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.model_config.errors import WeightsError
from engine.modeling.loader.weight_files import check_whole, weight_files


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(1000), "b": torch.zeros(3, 7, dtype=torch.bfloat16)}, path, {"format": "pt"})
    return path


def test_whole_files_pass(file: Path) -> None:
    save_file({}, file.with_name("empty.safetensors"))
    file.with_name("pytorch_model.bin").write_bytes(b"")  # nothing says how long it should be
    check_whole([file, file.with_name("empty.safetensors"), file.with_name("pytorch_model.bin")])
    assert weight_files(file.parent) == [file]


@pytest.mark.parametrize(
    ("kept", "problem"),
    [
        (-1, "bytes, and by its header"),
        (100, "ends within its header"),
        (4, "ends within"),
        (0, "ends within"),
    ],
)
def test_a_file_that_was_cut_off_is_named(file: Path, kept: int, problem: str) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:kept])
    with pytest.raises(WeightsError, match=rf"{file} .*{problem}.*download or copy it again"):
        check_whole([file])


def test_a_file_with_more_than_its_header_says_is_named(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(WeightsError, match="by its header"):
        check_whole([file])


def test_a_pointer_of_git_lfs_is_told_as_such(file: Path) -> None:
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(WeightsError, match="git lfs pull"):
        check_whole([file])


def test_a_header_that_is_no_json_is_named(file: Path) -> None:
    file.write_bytes((5).to_bytes(8, "little") + b"{oops" + bytes(100))
    with pytest.raises(WeightsError, match="header that cannot be read"):
        check_whole([file])
