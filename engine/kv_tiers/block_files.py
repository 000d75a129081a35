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
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from common.block_hash import BlockHash
from common.block_key import PAGE_KEY_BYTES, PageKey

log = logging.getLogger(__name__)

_MAGIC: Final = b"BatonKV2"
_FIELDS: Final = struct.Struct(f"<8s32s{PAGE_KEY_BYTES}sQQQ")
"""Magic, identity, key, hash, digest of the KV, bytes of the KV."""
_HEADER_BYTES: Final = _FIELDS.size + 8
"""With the checksum of the fields."""
_SUFFIX: Final = ".kv"
_LOCK_PATIENCE_S: Final = 10.0


class DirectoryInUse(Exception):
    """Another process has the directory."""


class BlockFiles:
    """The files of one worker for one model and page layout, in `folder`/identity, in 256 folders.

    Belongs to this process until `close`. `write` and `remove` are for one thread, `read` for another.
    """

    def __init__(self, folder: Path, identity: str, page_bytes: int) -> None:
        """`identity`: of weights and layout. Files of others in `folder` are deleted: nothing reads them.

        Raises OSError, and DirectoryInUse.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _locked(folder / "lock")
        self._identity = blake2b(identity.encode(), digest_size=32).digest()
        self._page_bytes = page_bytes
        self._root = folder / self._identity.hex()[:16]
        for other in folder.iterdir():
            if other.is_dir() and other != self._root:
                log.info("delete KV of other weights or another layout in %s", other)
                shutil.rmtree(other, ignore_errors=True)
        for shard in range(256):
            (self._root / f"{shard:02x}").mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def file_bytes(self) -> int:
        return _HEADER_BYTES + self._page_bytes

    def scan(self) -> list[tuple[PageKey, BlockHash]]:
        """Key and hash of the files that there are, the one used longest ago first. Deletes other files.

        Reads no file: what is in it is verified by `read`.
        """
        found: list[tuple[float, PageKey, BlockHash]] = []
        for entry in self._entries():
            key, hash = _parsed(entry.name)
            stat = entry.stat()
            if key is None or stat.st_size != self.file_bytes:
                with suppress(OSError):
                    os.unlink(entry.path)
            else:
                found.append((stat.st_mtime, key, hash))
        return [(key, hash) for _, key, hash in sorted(found)]

    def write(self, key: PageKey, hash: BlockHash, digest: int, content: npt.NDArray[np.uint8]) -> None:
        """Raises OSError, and leaves nothing behind then."""
        path = self._path(key, hash)
        temporary = path.with_suffix(".new")
        try:
            with open(temporary, "wb", buffering=0) as file:
                for part in (self._header(key, hash, digest), content.data):
                    rest = memoryview(part)
                    while rest:
                        rest = rest[file.write(rest) :]
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise

    def read(self, key: PageKey, hash: BlockHash, into: npt.NDArray[np.uint8]) -> int | None:
        """Read a file's KV, and return the digest that it should have; None: this is not the file."""
        header = bytearray(_HEADER_BYTES)
        path = self._path(key, hash)
        try:
            with open(path, "rb", buffering=0) as file:
                whole = _filled(file, memoryview(header)) and _filled(file, into.data) and not file.read(1)
            digest = _FIELDS.unpack_from(header)[4] if whole else 0
            if not whole or header != self._header(key, hash, digest):
                return None
            os.utime(path)
        except OSError as error:
            log.warning("cannot read %s: %s", path, error)
            return None
        return int(digest)

    def remove(self, key: PageKey, hash: BlockHash) -> None:
        with suppress(OSError):
            self._path(key, hash).unlink()

    def close(self) -> None:
        os.close(self._lock)

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        for shard in os.scandir(self._root):
            yield from os.scandir(shard.path)

    def _path(self, key: PageKey, hash: BlockHash) -> Path:
        name = key.hex()
        return self._root / name[:2] / f"{name}-{hash:016x}{_SUFFIX}"

    def _header(self, key: PageKey, hash: BlockHash, digest: int) -> bytes:
        fields = _FIELDS.pack(_MAGIC, self._identity, key, hash, digest, self._page_bytes)
        return fields + xxh3_64_intdigest(fields).to_bytes(8, "little")


def _filled(file: object, view: memoryview) -> bool:
    """Read until the view is full; False if the file ends before."""
    while view:
        count = file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            return False
        view = view[count:]
    return True


def _parsed(name: str) -> tuple[PageKey | None, BlockHash]:
    stem, suffix = os.path.splitext(name)
    key, _, hash = stem.partition("-")
    try:
        if suffix == _SUFFIX and len(key) == 2 * PAGE_KEY_BYTES and len(hash) == 16:
            return bytes.fromhex(key), int(hash, 16)
    except ValueError:
        pass
    return None, 0


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
