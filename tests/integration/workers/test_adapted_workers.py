"""Workers give each request the answer of its adapter, as merged by PEFT, wherever its KV is computed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from common.origin import namespace_of
from engine.config import Forecast, LoraConfig
from router.dispatch.adapters.adapted_work import fill_origin
from rpc.baton.v1 import worker_pb2
from tests.integration import tiny_cluster
from tests.integration.tiny_cluster import Link, Pair, slow_down, work, worker
from tests.integration.workers.test_live_migration import Move
from tests.unit.engine.adapters.peft_oracle import activated_greedy, greedy, merged, prompts, save_adapter
from tests.unit.engine.modeling.models.references import reference
from worker.config import TierConfig, WorkerRole

_COUNT = 10
_LORA = LoraConfig(max_loras=2, max_lora_rank=8)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines of tests are slow, and ranks share cores."""
    monkeypatch.setattr(tiny_cluster, "PATIENCE_S", 120.0)


@dataclass
class Styles:
    """A model, and three adapters of it."""

    base: Path
    adapters: list[Path]

    def answers(self, asked: Sequence[Sequence[int]], count: int = _COUNT) -> list[list[int]]:
        """Right answers to `jobs`."""
        models = [merged(self.base, adapter) for adapter in (None, *self.adapters)]
        return [greedy(model, prompt, count) for prompt, model in zip(asked, cycle(models), strict=False)]

    async def load(self, *links: Link) -> list[bytes]:
        """Digests of the base and of the adapters, which all of the workers have then."""
        found = []
        for link in links:
            infos = [
                await link.stub.LoadAdapter(worker_pb2.LoadAdapterRequest(name=path.name, path=str(path)))
                for path in self.adapters
            ]
            assert not [info.error for info in infos if info.error]
            found.append([b"", *(info.digest for info in infos)])
        assert all(digests == found[0] for digests in found)
        return found[0]


@pytest.fixture(params=["llama", "qwen2"])
def styles(request: pytest.FixtureRequest, tmp_path: Path) -> Styles:
    base = tmp_path / "base"
    reference(request.param).save_pretrained(base)
    return Styles(base, [save_adapter(base, tmp_path / f"style{k}", k, r=2 + 2 * k) for k in range(3)])


def jobs(asked: Sequence[Sequence[int]], digests: Sequence[bytes], count: int = _COUNT) -> list[Any]:
    """Each with the next adapter."""
    found = []
    for prompt, digest in zip(asked, cycle(digests), strict=False):
        job = work(prompt, max_tokens=count)
        job.adapter, job.adapter_digest = digest.hex(), digest
        job.namespace = namespace_of(adapter=digest)
        found.append(job)
    return found


def carrying(styles: Styles, jobs: Sequence[worker_pb2.Work], digests: Sequence[bytes]) -> None:
    """Let the jobs say from where a worker loads the adapter that it lacks."""
    for job in jobs:
        if job.adapter_digest:
            job.adapter_path = str(styles.adapters[digests.index(job.adapter_digest) - 1])


async def run(link: Link, job: worker_pb2.Work) -> list[int]:
    await link.submit(job)
    await link.next(job.request_id, "started")
    return (await link.tokens(job.request_id))[0]


async def all_of(jobs: Sequence[worker_pb2.Work], answer: Callable[[Any], Any]) -> list[list[int]]:
    return list(await asyncio.gather(*(answer(job) for job in jobs)))


@pytest.mark.parametrize(
    "engine",
    [
        {"chunk_budget": 7},
        {"overlap": True},
        {"num_pages": 36, "forecast": Forecast.NONE},
        {"tensor_parallel_size": 2},
    ],
    ids=["chunks", "overlap", "preemption", "two ranks"],
)
async def test_a_worker_answers_many_adapters_at_once(styles: Styles, engine: dict[str, Any]) -> None:
    asked = [prompt for prompt in prompts(3, 30, 97) for _ in range(4)]
    async with worker(styles.base, WorkerRole.DECODE, None, lora=_LORA, **engine) as link:
        digests = await styles.load(link)
        right = styles.answers(asked)
        for _ in range(2):  # the second time from the cache
            assert await all_of(jobs(asked, digests), lambda job: run(link, job)) == right
        await link.all_pages_back()
        stats = await link.stub.GetStats(worker_pb2.GetStatsRequest())
        assert stats.preemptions or "num_pages" not in engine
        assert stats.cache_hit_tokens or "num_pages" in engine


@pytest.mark.parametrize("lowest", ["host", "disk"])
async def test_kv_from_tiers_is_that_of_the_adapter(styles: Styles, lowest: str, tmp_path: Path) -> None:
    asked = [prompt for prompt in prompts(2, 40, 97) for _ in range(4)]
    tiers = TierConfig(host_bytes=1 << 24)
    if lowest == "disk":
        tiers = TierConfig(host_bytes=1 << 14, disk_dir=tmp_path / "disk", second_tier_bytes=1 << 24)
    async with worker(styles.base, WorkerRole.DECODE, None, lora=_LORA, tiers=tiers, num_pages=48) as link:
        digests = await styles.load(link)
        right = styles.answers(asked)
        promoted = [0]
        async with asyncio.timeout(120):
            while promoted == [0]:  # pages are copied to the disk beside steps
                assert await all_of(jobs(asked, digests), lambda job: run(link, job)) == right
                await link.stub.ManageCache(worker_pb2.ManageCacheRequest(clear=["pool"]))
                stats = await link.stub.GetStats(worker_pb2.GetStatsRequest())
                promoted = [tier.promoted for tier in stats.tiers.tiers if tier.name == lowest]
        assert promoted


async def test_kv_is_handed_over_to_the_same_adapter(styles: Styles) -> None:
    asked = [prompt for prompt in prompts(2, 37, 97) for _ in range(4)]
    async with (
        worker(styles.base, WorkerRole.PREFILL, "loopback", lora=_LORA) as prefill,
        worker(styles.base, WorkerRole.DECODE, "loopback", lora=_LORA) as decode,
    ):
        pair, digests = Pair(prefill, decode), await styles.load(prefill, decode)
        assert await all_of(jobs(asked, digests), pair.generate) == styles.answers(asked)
        await pair.all_pages_back()


async def test_a_running_answer_moves_with_its_adapter(styles: Styles) -> None:
    asked = prompts(2, 20, 97)
    async with (
        worker(styles.base, WorkerRole.DECODE, "loopback", "source", lora=_LORA) as source,
        worker(styles.base, WorkerRole.DECODE, "loopback", "target", lora=_LORA) as target,
    ):
        slow_down(source.host, 0.005)
        digests = await styles.load(source, target)
        for job, right in zip(jobs(asked, digests, 60), styles.answers(asked, 60), strict=True):
            move = Move(source, target, job)
            await source.submit(job)
            await source.next(job.request_id, "started")
            await move.run(tokens=3)
            await move.migrate(await move.reserve())
            await target.next(move.there.request_id, "arrived")
            await move.rest(source, job.request_id)
            await move.rest(target, move.there.request_id)
            assert move.complete() == right


async def test_an_activated_adapter_is_handed_over_and_moves_as_it_was_activated(
    styles: Styles, tmp_path: Path
) -> None:
    """The prefix before the invocation is that of a request of the base model."""
    invocation, before = (11, 12), [token for token in prompts(1, 30, 97)[0] if token not in (11, 12)]
    activated = save_adapter(styles.base, tmp_path / "activated", 7, alora_invocation_tokens=[*invocation])
    prompt = [*before, *invocation, 40, 41]
    right = activated_greedy(styles.base, activated, prompt, 40)
    async with (
        worker(styles.base, WorkerRole.DECODE, "loopback", "source", lora=_LORA) as source,
        worker(styles.base, WorkerRole.DECODE, "loopback", "target", lora=_LORA) as target,
    ):
        slow_down(source.host, 0.005)
        load = worker_pb2.LoadAdapterRequest(name="activated", path=str(activated))
        info = await source.stub.LoadAdapter(load)
        assert tuple(info.invocation) == invocation

        def job(count: int) -> worker_pb2.Work:
            found = work(prompt, max_tokens=count)
            fill_origin(found, info, path=str(activated))
            return found

        await run(source, work(before, max_tokens=2))
        assert await Pair(source, target).generate(job(_COUNT)) == right[:_COUNT]
        stats = await source.stub.GetStats(worker_pb2.GetStatsRequest())
        assert stats.cache_hit_tokens
        move = Move(source, target, job(40))
        await source.submit(move.here)
        await source.next(move.here.request_id, "started")
        await move.run(tokens=3)
        await move.migrate(await move.reserve())
        await target.next(move.there.request_id, "arrived")
        await move.rest(source, move.here.request_id)
        await move.rest(target, move.there.request_id)
        assert move.complete() == right
        await Pair(source, target).all_pages_back()


async def test_a_worker_loads_what_it_lacks_for_a_request(styles: Styles) -> None:
    asked = prompts(8, 30, 97)
    async with (
        worker(styles.base, WorkerRole.PREFILL, "loopback", lora=_LORA) as prefill,
        worker(styles.base, WorkerRole.DECODE, "loopback", lora=_LORA) as decode,
        worker(styles.base, WorkerRole.DECODE, "loopback", "idle", lora=_LORA) as idle,
    ):
        digests = await styles.load(prefill)
        pair, together = Pair(prefill, decode), jobs(asked, digests)
        carrying(styles, together, digests)
        assert await all_of(together, pair.generate) == styles.answers(asked)
        await pair.all_pages_back()
        alone = jobs(asked, digests)
        carrying(styles, alone, digests)
        assert await all_of(alone, lambda job: run(idle, job)) == styles.answers(asked)
        report = (await idle.stub.GetStats(worker_pb2.GetStatsRequest())).load.adapters
        assert {use.digest for use in report} == {*digests} - {b""}
        assert all(use.rank and use.host_bytes for use in report)


@pytest.mark.parametrize("kind", ["absent", "another content"])
async def test_requests_of_an_adapter_that_cannot_be_loaded_fail_and_free_their_pages(
    styles: Styles, kind: str
) -> None:
    async with (
        worker(styles.base, WorkerRole.PREFILL, "loopback", lora=_LORA) as prefill,
        worker(styles.base, WorkerRole.DECODE, "loopback", lora=_LORA) as decode,
    ):
        pair, digests = Pair(prefill, decode), await styles.load(prefill)
        submitted, reserved = jobs(prompts(2, 20, 97), [digests[1]])
        for job in (submitted, reserved):
            job.adapter_path = "/nowhere" if kind == "absent" else str(styles.adapters[1])
        await decode.submit(submitted)
        failed = await decode.next(submitted.request_id, "failed")
        assert failed.code == worker_pb2.FAILURE_CODE_ADAPTER
        assert ("cannot be read" if kind == "absent" else "another content") in failed.message
        await pair.reserve(reserved)
        events = decode.events[reserved.request_id]
        async with asyncio.timeout(60):
            while (event := await events.get())[0] == "reserved":
                pass
        failed = event[1]
        assert failed.code == worker_pb2.FAILURE_CODE_ADAPTER
        await pair.all_pages_back()


async def test_an_adapter_is_refused_where_it_is_not_loaded_or_wrong(styles: Styles) -> None:
    async with worker(styles.base, WorkerRole.DECODE, None, lora=LoraConfig(max_lora_rank=4)) as link:
        load = link.stub.LoadAdapter
        wide = await load(worker_pb2.LoadAdapterRequest(name="wide", path=str(styles.adapters[2])))
        assert "rank 6; --max-lora-rank is 4" in wide.error
        absent = await load(worker_pb2.LoadAdapterRequest(name="absent", path="/nowhere"))
        assert "cannot be read" in absent.error
        info = await load(worker_pb2.LoadAdapterRequest(name="style", path=str(styles.adapters[0])))
        [_, job] = jobs(prompts(2, 5, 97), [b"", info.digest])
        unloaded = await link.stub.UnloadAdapter(worker_pb2.UnloadAdapterRequest(digest=info.digest))
        assert (unloaded.name, unloaded.error) == ("style", "")
        await link.submit(job)
        failed = await link.next(job.request_id, "failed")
        assert failed.code == worker_pb2.FAILURE_CODE_ADAPTER
