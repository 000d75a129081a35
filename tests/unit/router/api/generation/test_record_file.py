"""Records of requests go to a bounded file, which others may write to, and hold nothing up."""

from __future__ import annotations

import json
import logging
import stat
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from router.api.generation.audit.record_file import BadRecordFile, RecordFile, open_records


def numbers(file: Path) -> list[int]:
    return [json.loads(line)["n"] for line in file.read_text().splitlines()]


def test_every_record_is_a_line_that_only_the_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for start in (0, 5):
        with RecordFile(path, 1 << 20) as records:
            for n in range(start, start + 5):
                records.add({"n": n})
    assert numbers(path) == list(range(10))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_full_file_is_renamed_and_the_one_before_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    line = len(b'{"n":10}\n')
    with RecordFile(path, 3 * line) as records:
        for n in range(10, 18):
            records.add({"n": n})
    assert numbers(path) == [16, 17]
    assert numbers(path.with_name("log.jsonl.1")) == [13, 14, 15]


def test_several_writers_share_one_file_and_its_rotation(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    most = 150 * len(b'{"n":1000}\n')

    def write(first: int) -> None:
        with RecordFile(path, most) as records:
            for n in range(first, first + 50):
                records.add({"n": n})

    threads = [threading.Thread(target=write, args=(1000 * (k + 1),)) for k in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    both = [*numbers(path.with_name("log.jsonl.1")), *numbers(path)]
    assert sorted(both) == [n for k in range(5) for n in range(1000 * (k + 1), 1000 * (k + 1) + 50)]
    assert len(numbers(path.with_name("log.jsonl.1"))) == 150


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with RecordFile(path, 1 << 20) as records:
        records.add({"n": 1})
    with RecordFile(path, 1 << 20) as records:
        path.rename(tmp_path / "yesterday.jsonl")
        records.add({"n": 2})
    assert numbers(tmp_path / "yesterday.jsonl") == [1]
    assert numbers(path) == [2]


def test_what_cannot_be_written_is_counted_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "log.jsonl"
    with caplog.at_level(logging.WARNING), RecordFile(path, 1 << 20) as records:
        path.unlink()
        folder.rmdir()
        for n in range(3):
            records.add({"n": n})
    assert [record.args[0] for record in caplog.records] == [1, 2]  # type: ignore[index]


async def test_a_path_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        assert open_records(None, 1.0, stack) is None
        with pytest.raises(BadRecordFile, match=r"--record-requests .*No such file"):
            open_records(str(tmp_path / "none" / "log"), 1.0, stack)
