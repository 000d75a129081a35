"""Files are read ahead of their use, and not further than they should be."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.model_config.errors import WeightsError
from engine.model_config.shard import Shard
from engine.modeling.loader import read_ahead
from engine.modeling.loader.read_ahead import ReadAhead, Stretch, weights_ahead

BLOCK = 1000


class Reads:
    """What `os.preadv` was asked for, in bytes from the file's start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[range] = []
        self._lock = threading.Lock()
        preadv = os.preadv

        def noting(file: int, buffers: list[memoryview], at: int) -> int:
            size = preadv(file, buffers, at)
            with self._lock:
                self.found.append(range(at, at + size))
            return size

        monkeypatch.setattr(os, "preadv", noting)

    @property
    def bytes(self) -> set[int]:
        return {at for one in self.found for at in one}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(read_ahead, "_BLOCK", BLOCK)
    path = tmp_path / "file"
    path.write_bytes(bytes(20_000))
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_all_stretches_are_read_once_and_nothing_else(file: Path, reads: Reads) -> None:
    wanted = [Stretch(file, 100, 1700), Stretch(file, 1700, 1710), Stretch(file, 5000, 5010)]

    reader = ReadAhead(wanted)

    until(lambda: len(reads.found) == 3)
    reader.close()
    assert reads.bytes == {*range(100, 1710), *range(5000, 5010)}
    assert sum(map(len, reads.found)) == 1620  # the neighbours were one stretch, of two blocks


def test_no_more_is_read_ahead_than_asked_for(file: Path, reads: Reads) -> None:
    reader = ReadAhead([Stretch(file, 0, 20_000)], ahead=3 * BLOCK)
    until(lambda: len(reads.found) == 3)
    time.sleep(0.05)
    assert max(reads.bytes) == 3 * BLOCK - 1

    reader.used(BLOCK)

    until(lambda: len(reads.found) == 4)
    reader.close()
    assert max(reads.bytes) == 4 * BLOCK - 1


def test_a_models_weights_are_read_ahead_as_far_as_there_is_room(file: Path, reads: Reads) -> None:
    file.rename(file.with_name("model.safetensors"))

    with weights_ahead(file.parent, 4 * BLOCK):
        until(lambda: len(reads.found) == 4)

    assert reads.bytes == set(range(4 * BLOCK))


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"lacks model\.safetensors"), weights_ahead(tmp_path, BLOCK):
        pass


def test_processes_share_the_blocks(file: Path, reads: Reads) -> None:
    for index in range(3):
        reader = ReadAhead([Stretch(file, 0, 20_000)], share=Shard(index, 3))
        until(lambda index=index: sum(map(len, reads.found)) == BLOCK * (7, 14, 20)[index])  # type: ignore[misc]
        reader.close()

    assert reads.bytes == set(range(20_000))


def test_a_disk_that_fails_is_reported_where_tensors_are_used(file: Path) -> None:
    reader = ReadAhead([Stretch(file.with_name("none"), 0, 10)])
    for thread in reader._threads:
        thread.join()

    with pytest.raises(FileNotFoundError):
        reader.used(10)
    reader.close()
