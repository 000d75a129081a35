"""Files of loaded adapters, held open: they can be sent after their folders were removed or written anew."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Final

from engine.adapters.peft_folder import CONFIG_FILE, WEIGHTS_FILE


@dataclass(frozen=True, slots=True, eq=False)
class OpenFiles:
    config: bytes
    weights: BinaryIO
    """Its position is shared with other readers: to be read at offsets."""

    @property
    def num_bytes(self) -> int:
        """Size of the weights. Raises OSError."""
        return os.fstat(self.weights.fileno()).st_size

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Weights from `offset` on. Raises OSError."""
        return os.pread(self.weights.fileno(), num_bytes, offset)


class HeldFiles:
    """For any thread."""

    def __init__(self) -> None:
        self._lock: Final = Lock()
        self._held: Final[dict[bytes, OpenFiles]] = {}

    def hold(self, digest: bytes, folder: Path) -> None:
        """Raises OSError if the files are gone, and holds none then."""
        opened = OpenFiles((folder / CONFIG_FILE).read_bytes(), (folder / WEIGHTS_FILE).open("rb"))
        with self._lock:
            replaced = self._held.pop(digest, None)
            self._held[digest] = opened
        if replaced is not None:
            replaced.weights.close()

    def drop(self, digest: bytes) -> None:
        with self._lock:
            held = self._held.pop(digest, None)
        if held is not None:
            held.weights.close()

    def opened(self, digest: bytes) -> OpenFiles | None:
        """For one reader, who closes `weights`; None: they are not held."""
        with self._lock:
            held = self._held.get(digest)
            if held is None:
                return None
            return OpenFiles(held.config, os.fdopen(os.dup(held.weights.fileno()), "rb"))
