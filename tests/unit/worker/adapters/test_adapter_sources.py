"""An adapter comes from its folder, or from a worker that has it, and is used only if it is the right one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from enum import Enum
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.adapters.peft_folder import CONFIG_FILE, WEIGHTS_FILE, content_hash
from engine.config import LoraConfig
from engine.core.adapters import AdapterInfo, ReadAdapter
from engine.errors import AdapterRefused
from engine.loop.adapters import Adapters
from engine.sched.queue.adapter_slots import AdapterSlots
from rpc.baton.v1 import worker_pb2, worker_pb2_grpc
from rpc.baton.v1.worker_pb2 import AdapterPart, AdapterSource, LoadAdapterRequest
from tests.unit.engine.fake_adapters import FakeAdapters
from worker.adapters.copies import AdapterCopies, save
from worker.adapters.held_files import HeldFiles
from worker.adapters.loading import AdapterLoading, wanted_by
from worker.session.inbox import Inbox
from worker.session.metrics import WorkerMetrics

CONFIG, WEIGHTS = b'{"r": 4}', bytes(range(256)) * 41
PART = 1000


def digest_of(config: bytes, weights: bytes) -> bytes:
    content = content_hash(config)
    content.update(weights)
    return content.digest()


DIGEST = digest_of(CONFIG, WEIGHTS)


def parts_of(config: bytes = CONFIG, weights: bytes = WEIGHTS) -> list[AdapterPart]:
    data = [AdapterPart(data=weights[at : at + PART]) for at in range(0, len(weights), PART)]
    return [AdapterPart(config=config, bytes=len(weights)), *data]


class Source(Enum):
    RIGHT = "right"
    ANOTHER = "another content"
    SHORT = "ends early"
    LONG = "sends more than it said"
    DIES = "dies in the middle"
    LACKS = "does not have it"
    GONE = "is not there"


class Peer(worker_pb2_grpc.AdapterFilesServicer):
    """The ticket says how it answers."""

    def Fetch(self, request: Any, context: Any) -> Iterator[AdapterPart]:  # noqa: N802
        assert request.digest == DIGEST
        match Source(request.ticket.decode()):
            case Source.RIGHT:
                yield from parts_of()
            case Source.ANOTHER:
                yield from parts_of(weights=WEIGHTS[::-1])
            case Source.SHORT:
                yield from parts_of()[:-2]
            case Source.LONG:
                yield from [*parts_of(), AdapterPart(data=b"more")]
            case Source.DIES:
                yield from parts_of()[:5]
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
            case _:
                context.abort(grpc.StatusCode.NOT_FOUND, "the adapter is not here")


@pytest.fixture(scope="module")
def peer() -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    worker_pb2_grpc.add_AdapterFilesServicer_to_server(Peer(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


class FilesBank(FakeAdapters):
    """Reads what is there, and says what it has read."""

    def read(self, name: str, path: Path) -> ReadAdapter:
        try:
            config, weights = (path / CONFIG_FILE).read_bytes(), (path / WEIGHTS_FILE).read_bytes()
        except OSError as error:
            raise AdapterRefused(str(error)) from None
        info = AdapterInfo(name, digest_of(config, weights), 4, ("q_proj",), len(weights))
        return ReadAdapter(info, path, (config, weights))


def loading() -> AdapterLoading:
    adapters = Adapters(LoraConfig(max_cpu_loras=4), FilesBank(), AdapterSlots(4), list)
    return AdapterLoading(adapters, Inbox(), WorkerMetrics())


def written(folder: Path, config: bytes = CONFIG, weights: bytes = WEIGHTS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_bytes(config)
    (folder / WEIGHTS_FILE).write_bytes(weights)
    return folder


def source_at(address: str, kind: Source) -> AdapterSource:
    return AdapterSource(
        address="127.0.0.1:1" if kind is Source.GONE else address, ticket=kind.value.encode()
    )


@settings(deadline=None, max_examples=60)
@given(
    folder=st.sampled_from(["none", "absent", "another", "right"]),
    kinds=st.lists(st.sampled_from(Source), max_size=3),
)
def test_the_right_content_is_found_wherever_it_is_and_no_other_is_used(
    folder: str, kinds: list[Source], peer: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("adapter")
    path = {
        "none": lambda: "",
        "absent": lambda: str(place / "nowhere"),
        "another": lambda: str(written(place, weights=WEIGHTS[1:])),
        "right": lambda: str(written(place)),
    }[folder]()
    adapters = loading()
    wanted = LoadAdapterRequest(
        name="sql", path=path, digest=DIGEST, sources=[source_at(peer, kind) for kind in kinds]
    )
    try:
        if folder == "right" or Source.RIGHT in kinds:
            read = adapters.read(wanted)
            assert read.content == (CONFIG, WEIGHTS)
            assert adapters.add(read).digest == DIGEST
            held = adapters.files.opened(DIGEST)
            assert held is not None
            with held.weights:
                assert held.read(0, 2 * len(WEIGHTS)) == WEIGHTS
            assert (folder == "right") == read.path.exists(), "a copy is removed when it is loaded"
        else:
            with pytest.raises(AdapterRefused) as refused:
                adapters.read(wanted)
            assert str(refused.value).count(peer) == len([k for k in kinds if k is not Source.GONE])
    finally:
        adapters.stop()


@settings(deadline=None)
@given(data=st.data())
def test_no_other_bytes_are_taken_for_an_adapter(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Parts that are lost, doubled, changed, moved or cut: the files are right, or they are refused."""
    parts = parts_of()
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(parts) - 1))
        match data.draw(st.sampled_from(["lose", "double", "swap", "flip", "size", "config"])):
            case "lose" if len(parts) > 1:
                del parts[at]
            case "double":
                parts.insert(at, parts[at])
            case "swap":
                parts[at], parts[-1] = parts[-1], parts[at]
            case "flip" if parts[at].data:
                changed = bytearray(parts[at].data)
                changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
                parts[at] = AdapterPart(data=bytes(changed))
            case "size":
                parts[at] = AdapterPart(config=parts[at].config, bytes=at, data=parts[at].data)
            case "config":
                parts[at] = AdapterPart(config=b"{}", bytes=parts[at].bytes, data=parts[at].data)
    place = tmp_path_factory.mktemp("copy")
    try:
        save(iter(parts), DIGEST, place)
    except AdapterRefused:
        return
    assert (place / CONFIG_FILE).read_bytes() == CONFIG
    assert (place / WEIGHTS_FILE).read_bytes() == WEIGHTS


def test_an_adapter_that_the_disk_cannot_hold_is_refused_before_it_comes(tmp_path: Path) -> None:
    def endless() -> Iterator[AdapterPart]:
        yield AdapterPart(config=CONFIG, bytes=1 << 60)
        raise AssertionError("nothing is read")

    with pytest.raises(AdapterRefused, match="has room for"):
        save(endless(), DIGEST, tmp_path)


def test_files_are_held_when_their_folder_is_gone_or_has_another_content(tmp_path: Path) -> None:
    files = HeldFiles()
    files.hold(DIGEST, written(tmp_path / "sql"))
    (tmp_path / "sql").rename(tmp_path / "gone")
    written(tmp_path / "sql", weights=b"another")
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        (tmp_path / "gone" / name).unlink()
    for _ in range(2):
        opened = files.opened(DIGEST)
        assert opened is not None
        with opened.weights:
            files_of = [opened.read(at, PART) for at in range(0, opened.num_bytes, PART)]
            assert (opened.config, b"".join(files_of)) == (CONFIG, WEIGHTS)
    files.drop(DIGEST)
    assert files.opened(DIGEST) is None


def test_remains_of_killed_processes_are_removed_and_copies_of_others_stay(
    peer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first, second = AdapterCopies(), AdapterCopies()
    kept = first.fetch(DIGEST, source_at(peer, Source.RIGHT))
    remains = kept.parents[1] / "4194304-killed"  # above every process id
    written(remains / "copy")
    second.fetch(DIGEST, source_at(peer, Source.RIGHT))
    assert (kept / WEIGHTS_FILE).exists()
    assert not remains.exists()
    for copies in (first, second):
        copies.stop()
        with pytest.raises(AdapterRefused, match="stops"):
            copies.fetch(DIGEST, source_at(peer, Source.RIGHT))
        copies.remove()
    assert not list(kept.parents[1].iterdir())


def test_a_request_without_folder_and_source_is_refused_by_name() -> None:
    adapters = loading()
    with pytest.raises(AdapterRefused, match="no folder is known of the adapter sql"):
        adapters.read(LoadAdapterRequest(name="sql", digest=DIGEST))
    adapters.stop()


def test_a_request_is_told_when_its_adapter_has_come_from_another_worker(peer: str) -> None:
    adapters, ends = loading(), []
    work = worker_pb2.Work(
        adapter="sql", adapter_digest=DIGEST, adapter_sources=[source_at(peer, Source.RIGHT)]
    )
    for _ in range(2):  # the second time, it comes already
        adapters.want(wanted_by(work), lambda *end: ends.append(end))
    inbox: Inbox = adapters._inbox
    while not ends:
        inbox.run(10.0)
    assert ends == [(DIGEST, "")]
    adapters.stop()
