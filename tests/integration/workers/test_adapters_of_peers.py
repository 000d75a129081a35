"""A worker that does not see the folder of an adapter gets it from one that has it, beside the prompt."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from engine.config import LoraConfig
from rpc.baton.v1 import worker_pb2
from rpc.peer_calls import ticket_for
from tests.integration.tiny_cluster import Link, Pair, worker
from tests.integration.workers.test_adapted_workers import Styles, all_of, jobs, run
from tests.unit.engine.adapters.peft_oracle import prompts, save_adapter
from tests.unit.engine.modeling.models.references import reference
from worker.adapters import files_service
from worker.adapters.held_files import OpenFiles
from worker.config import WorkerRole

_LORA = LoraConfig(max_loras=2, max_lora_rank=8)


@pytest.fixture
def styles(tmp_path: Path) -> Styles:
    base = tmp_path / "base"
    reference("llama").save_pretrained(base)
    return Styles(base, [save_adapter(base, tmp_path / f"style{k}", k, r=2 + 2 * k) for k in range(3)])


async def source_of(link: Link, digest: bytes) -> worker_pb2.AdapterSource:
    """As a router makes it."""
    info = await link.stub.Describe(worker_pb2.DescribeRequest())
    ticket = ticket_for(info.adapters_key, digest)
    return worker_pb2.AdapterSource(
        address=info.adapters_address, certificate=info.certificate, ticket=ticket
    )


async def fetching(asked: Sequence[Sequence[int]], digests: Sequence[bytes], *sources: Link) -> list[Any]:
    """Jobs whose adapters are in no folder."""
    found = jobs(asked, digests)
    for job in found:
        if job.adapter_digest:
            job.adapter_path = "/nowhere"
            job.adapter_sources.extend([await source_of(link, job.adapter_digest) for link in sources])
    return found


async def loaded_on(link: Link) -> set[bytes]:
    report = await link.stub.GetStats(worker_pb2.GetStatsRequest())
    return {use.digest for use in report.load.adapters}


def remove(styles: Styles) -> None:
    for folder in styles.adapters:
        shutil.rmtree(folder)


async def test_a_decode_worker_gets_adapters_from_the_prefill_worker(styles: Styles) -> None:
    asked = prompts(8, 30, 97)
    right = styles.answers(asked)
    async with (
        worker(styles.base, WorkerRole.PREFILL, "loopback", lora=_LORA) as prefill,
        worker(styles.base, WorkerRole.DECODE, "loopback", lora=_LORA) as decode,
    ):
        pair, digests = Pair(prefill, decode), await styles.load(prefill)
        remove(styles)
        assert await all_of(await fetching(asked, digests, prefill), pair.generate) == right
        await pair.all_pages_back()
        assert await loaded_on(decode) == {*digests} - {b""}
        assert await all_of(jobs(asked, digests), pair.generate) == right


async def test_a_worker_of_two_ranks_gets_adapters_and_passes_them_on(styles: Styles) -> None:
    """From the second worker the third has them, although neither has ever seen a folder."""
    asked = prompts(8, 30, 97)
    right = styles.answers(asked)
    async with worker(
        styles.base, WorkerRole.DECODE, None, "second", lora=_LORA, tensor_parallel_size=2
    ) as second:
        async with worker(styles.base, WorkerRole.DECODE, None, "first", lora=_LORA) as first:
            digests = await styles.load(first)
            remove(styles)
            assert await all_of(await fetching(asked, digests, first), lambda job: run(second, job)) == right
        async with worker(styles.base, WorkerRole.DECODE, None, "third", lora=_LORA) as third:
            await load_from(third, second, digests)
            assert await all_of(jobs(asked, digests), lambda job: run(third, job)) == right


async def load_from(link: Link, source: Link, digests: Sequence[bytes]) -> None:
    """As a router loads the adapters of its catalogue on a worker that joins."""
    for digest in digests[1:]:
        wanted = worker_pb2.LoadAdapterRequest(
            name="style", path="/nowhere", digest=digest, sources=[await source_of(source, digest)]
        )
        info = await link.stub.LoadAdapter(wanted)
        assert (info.error, info.digest) == ("", digest)
        assert info.load_s > 0


async def test_a_source_that_ends_in_the_middle_costs_no_answer(
    styles: Styles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second source has the adapter too."""
    monkeypatch.setattr(files_service, "_PART", 4096)
    asked, reached = prompts(2, 30, 97), Event()
    right = styles.answers(asked)
    async with (
        worker(styles.base, WorkerRole.DECODE, None, "dying", lora=_LORA) as dying,
        worker(styles.base, WorkerRole.DECODE, None, "living", lora=_LORA) as living,
        worker(styles.base, WorkerRole.DECODE, None, "cold", lora=_LORA) as cold,
    ):
        digests = await styles.load(dying)
        await styles.load(living)
        remove(styles)
        held = _hold(dying, reached, monkeypatch)
        asking = asyncio.create_task(
            all_of(await fetching(asked, digests, dying, living), lambda job: run(cold, job))
        )
        async with asyncio.timeout(60):
            await asyncio.to_thread(reached.wait)
        assert not asking.done()
        ending = asyncio.create_task(dying.host._peer_server.stop())  # type: ignore[union-attr]
        held.set()
        assert await asking == right
        await ending
        await cold.all_pages_back()


def _hold(link: Link, reached: Event, monkeypatch: pytest.MonkeyPatch) -> Event:
    """Keep the worker from sending more than one part of an adapter, until the event is set."""
    files, released = link.host._handler.adapters.files, Event()
    opened = files.opened

    class Held(OpenFiles):
        def read(self, offset: int, num_bytes: int) -> bytes:
            if offset:
                reached.set()
                released.wait(60)
            return super().read(offset, num_bytes)

    def held(digest: bytes) -> OpenFiles | None:
        found = opened(digest)
        return None if found is None else Held(found.config, found.weights)

    monkeypatch.setattr(files, "opened", held)
    return released


async def test_a_request_fails_with_all_reasons_where_no_source_has_its_adapter(styles: Styles) -> None:
    async with (
        worker(styles.base, WorkerRole.DECODE, None, "warm", lora=_LORA) as warm,
        worker(styles.base, WorkerRole.DECODE, None, "cold", lora=_LORA) as cold,
    ):
        digests = await styles.load(warm)
        [_, job, stolen] = await fetching(prompts(3, 20, 97), digests, warm)
        await warm.stub.UnloadAdapter(worker_pb2.UnloadAdapterRequest(digest=job.adapter_digest))
        stolen.adapter_sources[0].ticket = job.adapter_sources[0].ticket
        for wanted, reason in ((job, "the adapter is not here"), (stolen, "not for this adapter")):
            await cold.submit(wanted)
            failed = await cold.next(wanted.request_id, "failed")
            assert failed.code == worker_pb2.FAILURE_CODE_ADAPTER
            assert "/nowhere" in failed.message
            assert reason in failed.message
        await cold.all_pages_back()
