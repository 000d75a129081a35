"""Weights that came as tensors: folders below the machine's directory for temporary files (TMPDIR).

The workers of one machine share them: each folder is made once, under a name that is never used again.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

from engine.model_config.errors import WeightsError
from engine.modeling.loader.stored_tensors import overlay

STAGED: Final = "staged:"
"""Beginning of the names of such folders, before a router's own part and the update's."""
_NAME: Final = re.compile(rf"{STAGED}([0-9a-f]{{8,32}})/([0-9a-f]{{8,32}})")


class StagedWeights:
    def __init__(self, base: Path) -> None:
        """`base`: the folder that the worker was started with."""
        self._base: Final = base

    def path(self, folder: str) -> Path:
        """Where a folder of `worker_pb2.ServedWeights` is on this machine."""
        if not folder:
            return self._base
        found = _NAME.fullmatch(folder)
        return Path(folder) if found is None else _root() / found[1] / found[2]

    def begin(self, folder: str, base: str, keep: Sequence[str]) -> FolderInMaking | None:
        """None if the folder is here. Removes folders of the same router, but those to `keep`.

        Raises WeightsError for an unfit name.
        """
        if _NAME.fullmatch(folder) is None:
            raise WeightsError(f"{folder!r} is no name for staged weights")
        target = self.path(folder)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        stays = {self.path(name) for name in (folder, *keep)}
        for other in target.parent.iterdir():
            if other not in stays and not other.name.startswith("."):
                shutil.rmtree(other, ignore_errors=True)  # another worker may do so too
        return None if target.exists() else FolderInMaking(target, self.path(base))


class FolderInMaking:
    """A folder that is being made; `finish` or `drop` ends it."""

    def __init__(self, target: Path, base: Path) -> None:
        self._target: Final = target
        self._base: Final = base
        self._place: Final = Path(tempfile.mkdtemp(prefix=".", dir=target.parent))
        self._tensors: Final[BinaryIO] = (self._place / "tensors.safetensors").open("wb")

    def write(self, data: bytes) -> None:
        self._tensors.write(data)

    def finish(self) -> None:
        """Raises WeightsError, and leaves nothing behind then."""
        try:
            self._tensors.close()
            made = self._place / "made"
            overlay(self._base, Path(self._tensors.name), made)
            try:
                made.rename(self._target)
            except OSError:
                if not self._target.exists():  # else another worker was faster
                    raise
        finally:
            self.drop()

    def drop(self) -> None:
        self._tensors.close()
        shutil.rmtree(self._place, ignore_errors=True)


def _root() -> Path:
    return Path(tempfile.gettempdir()) / f"baton-weights-{os.getuid()}"
