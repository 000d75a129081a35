"""A file of JSON lines, bounded by its size, that several processes may append to."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from queue import Full, Queue
from types import TracebackType
from typing import Any, Final, Self

import orjson

_log = logging.getLogger(__name__)

_WAITING: Final = 10_000
"""Lines that wait for the disk at most."""
_OWNER_ONLY: Final = 0o600


class BadRecordFile(Exception):
    """The file of --record-requests cannot be opened."""


def open_records(path: str | None, most_mb: float, stack: AsyncExitStack) -> RecordFile | None:
    """Closed with `stack`; None without a path. Raises BadRecordFile."""
    if path is None:
        return None
    try:
        return stack.enter_context(RecordFile(Path(path), int(most_mb * 2**20)))
    except OSError as error:
        raise BadRecordFile(f"--record-requests {path}: {error.strerror}") from error


class RecordFile:
    """Appends lines on a thread of its own. A file that has reached its limit is renamed to FILE.1, which
    replaces the previous one. Lines that cannot be written are counted in the log, and hold nothing up.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        """Raises OSError if the file cannot be written to."""
        self._path: Final = path
        self._most: Final = most_bytes
        os.close(self._open())
        self._lines: Final[Queue[dict[str, Any] | None]] = Queue(_WAITING)
        self._lost = 0
        self._thread: Final = threading.Thread(target=self._write_all, name="records", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Returns when all lines are written."""
        self._lines.put(None)
        self._thread.join()

    def add(self, record: dict[str, Any]) -> None:
        """Write it soon. Never blocks."""
        try:
            self._lines.put_nowait(record)
        except Full:
            self._lose(f"more than {_WAITING} wait for the disk")

    def _write_all(self) -> None:
        while (record := self._lines.get()) is not None:
            try:
                self._write(orjson.dumps(record) + b"\n")
            except OSError as error:
                self._lose(str(error))

    def _write(self, line: bytes) -> None:
        file = self._open()
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not self._is_current(file):  # another process has renamed it
                return self._write(line)
            if (size := os.fstat(file).st_size) and size + len(line) > self._most:
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
                return self._write(line)
            os.write(file, line)
        finally:
            os.close(file)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _OWNER_ONLY)

    def _is_current(self, file: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(file))
        except FileNotFoundError:
            return False

    def _lose(self, reason: str) -> None:
        self._lost += 1
        if self._lost.bit_count() == 1:  # 1, 2, 4, 8, …
            _log.warning("%d requests are missing in %s: %s", self._lost, self._path, reason)
