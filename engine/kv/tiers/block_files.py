"""KV pages as files: one file a page, named by its key, with the hash of all tokens up to its end.

A file is complete or not there: it is written under another name and then renamed. It is not synced, so after
a crash of the machine it may hold other bytes; these are found by the digest in its header, which the KV must
have when it is in the pool again. Whatever is wrong with a file makes it a miss.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from common.block_hash import BlockHash
from common.block_key import PageKey
from engine.kv.tiers.block_format import BlockFormat

log = logging.getLogger(__name__)

_LOCK_PATIENCE_S: Final = 10.0


class DirectoryInUse(Exception):
    """Another process has the directory."""


class BlockFiles:
    """The files of one worker for one model and page layout, in `folder`/identity, in 256 folders.

    Belongs to this process until `close`. `write` and `remove` are for one thread, `read` for another.
    """

    readers = writers = 1
    look_s = 0.0

    def __init__(self, folder: Path, identity: str, page_bytes: int) -> None:
        """`identity`: of weights and layout. Files of others in `folder` are deleted: nothing reads them.

        Raises OSError, and DirectoryInUse.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _locked(folder / "lock")
        self._format = BlockFormat(identity, page_bytes)
        self._root = folder / self._format.folder
        for other in folder.iterdir():
            if other.is_dir() and other != self._root:
                log.info("delete KV of other weights or another layout in %s", other)
                shutil.rmtree(other, ignore_errors=True)
        for shard in range(256):
            (self._root / f"{shard:02x}").mkdir(parents=True, exist_ok=True, mode=0o700)

    def scan(self) -> list[tuple[PageKey, BlockHash]]:
        """Key and hash of the files that there are, the one used longest ago first. Deletes other files.

        Reads no file: what is in it is verified by `read`.
        """
        found: list[tuple[float, PageKey, BlockHash]] = []
        for entry in self._entries():
            parsed = self._format.parsed(entry.name)
            stat = entry.stat()
            if parsed is None or stat.st_size != self._format.total_bytes:
                with suppress(OSError):
                    os.unlink(entry.path)
            else:
                found.append((stat.st_mtime, *parsed))
        return [(key, hash) for _, key, hash in sorted(found)]

    def look(self) -> list[tuple[PageKey, BlockHash]]:
        """Nothing: no other process writes here."""
        return []

    def write(self, key: PageKey, hash: BlockHash, digest: int, *content: npt.NDArray[np.uint8]) -> None:
        """Raises OSError, and leaves nothing behind then."""
        path = self._path(key, hash)
        temporary = path.with_suffix(".new")
        try:
            with open(temporary, "wb", buffering=0) as file:
                header = memoryview(self._format.header(key, hash, digest))
                for rest in [header, *[part.data for part in content]]:
                    while rest:
                        rest = rest[file.write(rest) :]
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise

    def read(self, key: PageKey, hash: BlockHash, *into: npt.NDArray[np.uint8]) -> int | None:
        """Read a file's content, and return the digest that it should have; None: this is not the file."""
        header = bytearray(self._format.header_bytes)
        path = self._path(key, hash)
        try:
            with open(path, "rb", buffering=0) as file:
                views = [memoryview(header), *[part.data for part in into]]
                whole = all(_filled(file, view) for view in views) and not file.read(1)
            digest = self._format.digest_of(header, key, hash) if whole else None
            if digest is not None:
                os.utime(path)
        except OSError as error:
            log.warning("cannot read %s: %s", path, error)
            return None
        return digest

    def remove(self, key: PageKey, hash: BlockHash) -> None:
        with suppress(OSError):
            self._path(key, hash).unlink()

    def forget(self, key: PageKey, hash: BlockHash) -> None:
        """Nothing: `look` returns no file."""

    def close(self) -> None:
        os.close(self._lock)

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        for shard in os.scandir(self._root):
            yield from os.scandir(shard.path)

    def _path(self, key: PageKey, hash: BlockHash) -> Path:
        return self._root / self._format.path(key, hash)


def _filled(file: object, view: memoryview) -> bool:
    """Read until the view is full; False if the file ends before."""
    while view:
        count = file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            return False
        view = view[count:]
    return True


def _locked(path: Path) -> int:
    """A descriptor that holds the lock; the process before may still be ending."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            os.close(descriptor)
            raise DirectoryInUse(f"another process uses {path.parent}") from None
        return descriptor
