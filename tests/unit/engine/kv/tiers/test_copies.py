"""The shell of tiers: memory, files and threads."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.block_hash import BlockHash
from common.block_key import PageKey, block_keys, page_key, root_key
from common.sidecars import PROMPT_LOGPROBS, SidecarKind, pooled_sums
from engine.device.batched_copies import BatchedCopies
from engine.kv.cache.sidecars import NO_SIDECARS, Sidecars
from engine.kv.tiers.block_files import BlockFiles, DirectoryInUse
from engine.kv.tiers.copier import BackgroundCopier
from engine.kv.tiers.host_pages import HostPages, runs
from engine.kv.tiers.jobs import Demote, Done, Forget, Job, Load, Promote, Remove, Save

Bytes = npt.NDArray[np.uint8]

KEY, OTHER_KEY = (page_key(key, 3) for key in block_keys([1, 2, 3, 4], 2, root_key("model")))
BYTES = 96


def content(seed: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, BYTES, dtype=np.uint8)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[BlockFiles]:
    opened = BlockFiles(tmp_path, "model", BYTES)
    yield opened
    opened.close()


def read(files: BlockFiles) -> tuple[int | None, Bytes]:
    into = np.zeros(BYTES, dtype=np.uint8)
    return files.read(KEY, 7, into), into


def test_a_file_is_read_as_it_was_written(files: BlockFiles) -> None:
    files.write(KEY, 7, 99, content(1))
    digest, found = read(files)
    assert digest == 99
    assert (found == content(1)).all()


def test_files_are_found_again_by_the_next_process(tmp_path: Path) -> None:
    before = BlockFiles(tmp_path, "model", BYTES)
    before.write(KEY, 7, 99, content(1))
    before.write(OTHER_KEY, 2**64 - 1, 5, content(2))
    before.close()
    after = BlockFiles(tmp_path, "model", BYTES)
    assert sorted(after.scan()) == sorted([(KEY, 7), (OTHER_KEY, 2**64 - 1)])
    assert read(after)[0] == 99
    after.close()


def test_files_of_another_model_are_deleted(tmp_path: Path) -> None:
    before = BlockFiles(tmp_path, "model", BYTES)
    before.write(KEY, 7, 99, content(1))
    before.close()
    after = BlockFiles(tmp_path, "another", BYTES)
    assert after.scan() == []
    assert read(after)[0] is None
    assert not list(tmp_path.rglob("*.kv"))
    after.close()


def test_a_folder_serves_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.kv.tiers.block_files._LOCK_PATIENCE_S", 0.0)
    files = BlockFiles(tmp_path, "model", BYTES)
    with pytest.raises(DirectoryInUse, match=str(tmp_path)):
        BlockFiles(tmp_path, "model", BYTES)
    files.close()
    BlockFiles(tmp_path, "model", BYTES).close()


def test_any_flipped_byte_of_a_header_and_any_other_length_is_a_miss(
    tmp_path: Path, files: BlockFiles
) -> None:
    files.write(KEY, 7, 99, content(1))
    (path,) = tmp_path.rglob("*.kv")
    good = path.read_bytes()
    header = len(good) - BYTES
    for position in range(header):
        path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        assert read(files)[0] is None, position
    for bad in (b"", good[:header], good[:-1], good + b"x"):
        path.write_bytes(bad)
        assert read(files)[0] is None
    path.write_bytes(good)
    assert read(files)[0] == 99
    path.unlink()
    assert read(files)[0] is None


def test_a_partial_file_is_no_hit_and_is_deleted(tmp_path: Path, files: BlockFiles) -> None:
    files.write(KEY, 7, 99, content(1))
    (path,) = tmp_path.rglob("*.kv")
    path.with_suffix(".new").write_bytes(path.read_bytes()[:50])
    path.write_bytes(path.read_bytes()[:-1])
    assert files.scan() == []
    assert not [found for found in tmp_path.rglob("*") if found.is_file() and found.name != "lock"]


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, files: BlockFiles) -> None:
    files.write(OTHER_KEY, 1, 1, content(1))
    for shard in tmp_path.glob(f"*/{KEY.hex()[:2]}"):
        shard.rmdir()
    with pytest.raises(OSError, match=r"\.new"):
        files.write(KEY, 7, 99, content(1))
    assert read(files)[0] is None


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=30, unique_by=lambda pair: pair[1])
)
def test_runs_cover_every_copy_once_and_stay_within_a_segment(pairs: list[tuple[int, int]]) -> None:
    pages, slots = [page for page, _ in pairs], [slot for _, slot in pairs]
    found = list(runs(pages, slots, per_segment=7))
    assert [(page + k, slot + k) for page, slot, length in found for k in range(length)] == pairs
    assert all(slot // 7 == (slot + length - 1) // 7 for _, slot, length in found)
    for (page, slot, length), (next_page, next_slot, _) in pairwise(found):
        assert (next_page, next_slot) != (page + length, slot + length) or next_slot % 7 == 0


class Threads:
    """A copier, and a way to wait for its answers."""

    def __init__(self, folder: Path, sidecars: Sidecars = NO_SIDECARS) -> None:
        self.pool = torch.rand(9, 2, 12)
        self.woken = threading.Semaphore(0)
        host = HostPages(self.pool, num_slots=8)

        def digest(pages: Sequence[int], tail_tokens: int, after: object) -> Callable[[], list[int]]:
            return lambda: [int(self.pool[page].view(torch.uint8).long().sum()) for page in pages]

        files = BlockFiles(folder, "model", host.page_bytes + sidecars.record_bytes)
        self.copier = BackgroundCopier(host, digest, 4, files, sidecars=sidecars, wake=self.woken.release)
        self.copier.start()

    def do(self, job: Job) -> Done:
        self.copier.submit(job)
        assert self.woken.acquire(timeout=30)
        (done,) = self.copier.poll()
        return done


def test_sidecars_go_with_their_page_and_are_verified_with_it(tmp_path: Path) -> None:
    kinds = (PROMPT_LOGPROBS, SidecarKind("routed_experts", 0, np.dtype((np.uint8, (3, 2)))))
    sums = pooled_sums("mean", 3)
    sidecars = Sidecars(9, 4, (*kinds, sums))
    draw = np.random.default_rng(0)
    for kind in kinds:
        drawn = np.frombuffer(draw.bytes(4 * kind.row.itemsize), np.uint8).view(kind.row.base)
        sidecars.write(kind, 3, 0, drawn.reshape(4, *kind.row.shape))
    sidecars.add(sums, 3, 0, 4, np.array([1.5, -2.0, 3.0], np.float32))
    before = sidecars.read(3)
    assert len(before) == sidecars.record_bytes == 16 + 4 * (16 + 6) + 12
    threads = Threads(tmp_path, sidecars)
    down = threads.do(Demote(1, (3, 4), (0, 1)))
    assert down.digests[0] is not None
    assert threads.do(Save(2, KEY, 7, down.digests[0], 0)).digests == down.digests[:1]
    assert threads.do(Load(3, KEY, 7, 5)).digests == down.digests[:1]
    assert threads.do(Promote(4, (5, 1), (6, 7))).digests == down.digests
    assert (sidecars.read(6), sidecars.read(7)) == (before, b"")
    plain = threads.do(Demote(5, (4,), (5,)))
    assert threads.do(Promote(6, (5,), (8,))).digests == plain.digests
    threads.copier._records.of(5)[0][-1] ^= 1
    assert threads.do(Promote(8, (5,), (8,))).digests != plain.digests
    assert sidecars.read(8) == b"", "a slot has kept the rows of an earlier page"
    assert threads.do(Load(7, KEY, 7, 5)).digests == down.digests[:1]
    sidecars.clear([6])
    for place in range(sidecars.record_bytes):
        threads.copier._records.of(5)[0][place] ^= 1
        assert threads.do(Promote(10 + place, (5,), (6,))).digests != down.digests[:1]
        threads.copier._records.of(5)[0][place] ^= 1
        sidecars.clear([6])
    threads.copier.stop()


@pytest.fixture
def threads(tmp_path: Path) -> Iterator[Threads]:
    running = Threads(tmp_path)
    yield running
    running.copier.stop()


def test_what_comes_up_is_what_went_down(threads: Threads) -> None:
    pool = threads.pool
    before = pool.clone()
    down = threads.do(Demote(1, (2, 3, 6), (0, 1, 5)))
    saved = threads.do(Save(2, KEY, 7, digest := down.digests[1] or 0, slot=1))
    pool.zero_()
    assert saved.digests == (digest,)
    loaded = threads.do(Load(3, KEY, 7, slot=7))
    up = threads.do(Promote(4, (7, 0, 5), (8, 0, 1)))
    assert loaded.digests == (digest,)
    assert up.digests == (digest, down.digests[0], down.digests[2])
    assert torch.equal(pool[[8, 0, 1]], before[[3, 2, 6]])
    assert not pool[2:8].any()


def test_a_removed_file_is_a_miss(threads: Threads) -> None:
    threads.do(Demote(1, (2,), (0,)))
    threads.do(Save(2, KEY, 7, 5, slot=0))
    threads.copier.submit(Remove(KEY, 7))
    threads.do(Save(3, OTHER_KEY, 8, 5, slot=0))  # after the removal
    assert threads.do(Load(4, KEY, 7, slot=1)).digests == (None,)


class Broken:
    """Files whose code fails as nothing expects."""

    readers = writers = 1
    look_s = 0.0

    def look(self) -> list[tuple[PageKey, BlockHash]]:
        raise KeyError("look")

    def read(self, key: PageKey, hash: BlockHash, into: Bytes) -> int | None:
        raise KeyError("read")

    def write(self, key: PageKey, hash: BlockHash, digest: int, content: Bytes) -> None:
        raise KeyError("write")

    def remove(self, key: PageKey, hash: BlockHash) -> None:
        raise KeyError("remove")

    def forget(self, key: PageKey, hash: BlockHash) -> None:
        raise KeyError("forget")

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "job", [Load(1, KEY, 7, 0), Save(1, KEY, 7, 5, 0), Remove(KEY, 7), Forget(KEY, 7), None]
)
def test_a_thread_that_fails_is_fatal_and_not_forgotten(job: Job | None) -> None:
    """A job without an end would keep its slot and the requests that wait for it."""
    deaths: list[BaseException] = []
    died = threading.Event()

    def on_fatal(error: BaseException) -> None:
        deaths.append(error)
        died.set()

    files = Broken()
    files.look_s = 0.0 if job is not None else 1.0
    host = HostPages(torch.rand(9, 2, 12), num_slots=8)
    copier = BackgroundCopier(host, lambda *_: list, 4, files, on_fatal=on_fatal)
    copier.start()
    if job is not None:
        copier.submit(job)
    assert died.wait(30)
    copier.stop()
    assert len(deaths) == 1


class EventsOfAGpu(HostPages):
    """Copies that end by events."""

    def put(self, slots: Sequence[int], pages: Sequence[int]) -> torch.cuda.Event | None:
        return cast("torch.cuda.Event", object())


def test_a_gpu_has_the_next_copy_before_the_host_waits_for_the_one_before() -> None:
    seen: list[str] = []
    all_done = threading.Event()
    pool = torch.rand(9, 2, 12)

    def digest(pages: Sequence[int], tail_tokens: int, after: object) -> Callable[[], list[int]]:
        seen.append(f"begin {pages[0]}")

        def wait() -> list[int]:
            seen.append(f"wait {pages[0]}")
            return [0]

        return wait

    copier = BackgroundCopier(
        EventsOfAGpu(pool, num_slots=8), digest, 4, wake=lambda: all_done.set() if len(seen) == 6 else None
    )
    for number in range(3):
        copier.submit(Promote(number, (0,), (number,)))
    copier.start()
    assert all_done.wait(timeout=30)
    copier.stop()
    assert seen == ["begin 0", "begin 1", "wait 0", "begin 2", "wait 1", "wait 2"]
    assert [done.id for done in copier.poll()] == [0, 1, 2]


class CopyingBatches:
    """`BatchedCopies` of host memory."""

    def enqueue(self, targets: Any, sources: Any, sizes: Any, stream: object) -> None:
        for target, source, size in zip(targets.tolist(), sources.tolist(), sizes.tolist(), strict=True):
            ctypes.memmove(target, source, size)


def test_copies_in_one_call_are_those_of_the_pages_and_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.kv.tiers.host_pages._SEGMENT_BYTES", 3 * BYTES)
    pool = torch.rand(9, 2, 12)
    before = pool.clone()
    host = HostPages(pool, num_slots=8)
    host._bases = np.array([segment.data_ptr() for segment in host._segments], dtype=np.uint64)
    batches = cast("BatchedCopies", CopyingBatches())
    pages, slots = [2, 3, 4, 0, 8], [1, 2, 3, 7, 5]
    host._enqueue(batches, pages, slots, down=True)
    pool.zero_()
    host._enqueue(batches, pages, slots, down=False)
    assert torch.equal(pool[pages], before[pages])
    assert not pool[[1, 5, 6, 7]].any()
    host._enqueue(batches, [], [], down=True)
