"""Digests of the tensors of weight files, over all their bytes.

Reading and hashing a GB takes a second of a core. Digests of large files are kept with size, inode and times
of the file, so that a machine hashes a checkpoint once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from engine.model_config.errors import WeightsError
from engine.modeling.loader.stored_tensors import stored_tensors
from engine.modeling.loader.weight_files import TORCH_FILE

_log = logging.getLogger(__name__)

_BLOCK: Final = 4 << 20
_MOST_THREADS: Final = 16
_LARGE: Final = 256 << 20
"""Bytes of a file whose digests are kept."""
_KEPT_S: Final = 30 * 24 * 3600
"""Since they were last used."""
_FORMAT: Final = 1
"""Changes whenever the same bytes would have other digests."""

Digests: TypeAlias = dict[str, str]
"""Hex digests, keyed by the names of tensors."""


class Stamp(NamedTuple):
    """Size, inode and times of a file: changes with its content, unless the clock is set back."""

    size: int
    inode: int
    modified_ns: int
    changed_ns: int
    format: int = _FORMAT

    @classmethod
    def of(cls, file: Path) -> Stamp:
        found = file.stat()
        return cls(found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)


def tensor_digests(stamps: Mapping[Path, Stamp]) -> Digests:
    """Digests of all tensors of these files, with their types and shapes.

    Reads files whose digests are not kept, on as many threads as there are cores, up to 16. Raises
    WeightsError if a file has changed since its stamp was taken.
    """
    digests: Digests = {}
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(threads, "digests") as pool:
        for file, stamp in stamps.items():
            known = _kept(file, stamp) if stamp.size >= _LARGE else None
            if known is None:
                known = dict(_hashed(file, pool))
                if stamp.size >= _LARGE:
                    _keep(file, stamp, known)
            if Stamp.of(file) != stamp:
                raise WeightsError(f"{file} has changed since it was loaded; start the worker again")
            digests |= known
    return digests


def _hashed(file: Path, pool: Executor) -> Iterator[tuple[str, str]]:
    for name, kind, begin, end in _pieces(file):
        digest = hashlib.blake2b(kind.encode(), digest_size=16)
        for of_block in pool.map(partial(_of_block, file, end), range(begin, end, _BLOCK)):
            digest.update(of_block)
        yield name, digest.hexdigest()


def _pieces(file: Path) -> Iterable[tuple[str, str, int, int]]:
    """Name, type and shape, first byte and end of every tensor; a file of torch's is one piece."""
    if file.name == TORCH_FILE:
        return [(file.name, "torch", 0, file.stat().st_size)]
    return [(one.name, f"{one.dtype} {list(one.shape)} ", one.begin, one.end) for one in stored_tensors(file)]


def _of_block(file: Path, end: int, begin: int) -> bytes:
    with file.open("rb", buffering=0) as opened:
        block = os.pread(opened.fileno(), min(_BLOCK, end - begin), begin)
    return hashlib.blake2b(block, digest_size=32).digest()


def _kept(file: Path, stamp: Stamp) -> Digests | None:
    place = _place(file)
    try:
        kept = json.loads(place.read_text())
        place.touch()
        return dict(kept["digests"]) if kept["stamp"] == list(stamp) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # there are none, or a process was killed while it wrote them


def _keep(file: Path, stamp: Stamp, digests: Digests) -> None:
    place = _place(file)
    partial_file = place.with_suffix(f".{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        partial_file.write_text(json.dumps({"stamp": stamp, "digests": digests}))
        partial_file.replace(place)
        for other in place.parent.iterdir():
            if other.stat().st_mtime < time.time() - _KEPT_S:
                other.unlink()
    except OSError as error:
        _log.info("the digests of %s are not kept: %s", file, error)


def _place(file: Path) -> Path:
    name = hashlib.blake2b(str(file.resolve()).encode(), digest_size=16).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    return cache / "baton" / "digests" / f"{name}.json"
