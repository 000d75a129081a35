"""What a local Ray leaves on the disk."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from router.cluster.local_ray import keep_token_private


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_rays_token_is_written_into_a_file_that_only_its_user_can_read(tmp_path: Path) -> None:
    token = tmp_path / ".ray" / "auth_token"
    keep_token_private(token)
    with token.open("w") as file:  # as Ray does
        file.write("secret")
    assert mode_of(token) == 0o600


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666])
def test_a_token_that_exists_is_kept_and_made_private(tmp_path: Path, mode: int) -> None:
    token = tmp_path / "auth_token"
    token.write_text("secret")
    token.chmod(mode)
    keep_token_private(token)
    assert (token.read_text(), mode_of(token)) == ("secret", 0o600)
