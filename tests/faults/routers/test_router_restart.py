"""Routers come and go, and the workers stay: the same processes, with their weights and prefix caches."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest

from tests.faults.support.bounds import bounded
from tests.faults.support.joined import all_ended, cached_tokens, joined, worker_pids
from tests.faults.support.load import Answers, Load
from tests.faults.support.service import Service
from tests.faults.support.small_model import SmallModel
from tests.running_ray import running_ray

pytestmark = [pytest.mark.timeout(600), pytest.mark.thorough]

CLIENTS = 8
WORKERS = 2


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    with running_ray(num_cpus=WORKERS + 1) as running:
        yield running.address


@bounded("rounds", here=1, soak=100)
async def test_a_killed_router_leaves_workers_weights_and_prefix_caches_to_the_next_one(
    small: SmallModel, answers: Answers, ray_address: str, tmp_path: Path, rounds: int
) -> None:
    draw = random.Random(rounds)
    before: dict[str, int] = {}
    began = time.monotonic()
    for round_ in range(rounds + 1):
        with joined(small, ray_address, tmp_path / f"log-{round_}") as service:
            serves_after = time.monotonic() - began
            if round_:
                assert await worker_pids(service) == before
                assert await cached_tokens(service, answers.questions[0].prompt) > 0
                await service.all_pages_back()  # those of the killed router's requests too
                print(f"\nround {round_}: the next router serves {serves_after:.1f} s after the kill", end="")
            else:
                before = await worker_pids(service)
                assert len(before) == WORKERS
            async with Load(service.clients(CLIENTS, router_may_die=True), answers) as load:
                await load.everybody_streams()
                if round_ < rounds:
                    await asyncio.sleep(draw.uniform(0.0, 1.0))
                    service.running.process.send_signal(signal.SIGKILL)
                    began = time.monotonic()
                load.stop()
            if round_ == rounds:
                assert not load.refusals
                await service.all_pages_back()
    assert all(psutil.pid_exists(pid) for pid in before.values())


async def test_two_routers_share_the_workers_and_only_the_streams_of_a_killed_one_end(
    small: SmallModel, answers: Answers, ray_address: str, tmp_path: Path
) -> None:
    with (
        joined(small, ray_address, tmp_path / "first") as first,
        joined(small, ray_address, tmp_path / "second") as second,
    ):
        before = await worker_pids(first)
        assert await worker_pids(second) == before
        async with (
            Load(second.clients(CLIENTS // 2), answers) as going_on,
            Load(first.clients(CLIENTS // 2, router_may_die=True), answers) as broken,
        ):
            await going_on.everybody_streams()
            await broken.everybody_streams()
            first.running.process.send_signal(signal.SIGKILL)
            broken.stop()
            await going_on.everybody_streams(since=time.monotonic())
        assert not going_on.refusals
        assert broken.refusals
        assert await worker_pids(second) == before
        await second.all_pages_back()


async def test_a_router_with_other_settings_restarts_the_workers_one_by_one(
    small: SmallModel, answers: Answers, ray_address: str, tmp_path: Path
) -> None:
    with joined(small, ray_address, tmp_path / "first") as first:
        before = await worker_pids(first)
    with joined(small, ray_address, tmp_path / "second", "--max-running-requests", "32") as second:
        async with Load(second.clients(CLIENTS), answers) as load:
            await load.everybody_streams()
            await second.says(r"decode-0 is ready again", 0, 90.0)
            await second.says(r"prefill-0 is ready again", 0, 90.0)
            await load.everybody_streams(since=time.monotonic())
        assert not load.refusals
        assert not set((await worker_pids(second)).values()) & set(before.values())
        await second.all_pages_back()


async def test_a_router_that_wants_other_workers_is_ready_when_all_of_them_are(
    small: SmallModel, ray_address: str, tmp_path: Path
) -> None:
    with joined(small, ray_address, tmp_path / "first") as first:
        before = await worker_pids(first)
    others = {"prefill_workers": 0, "decode_workers": WORKERS}
    with joined(small, ray_address, tmp_path / "second", "--mode", "mixed", **others) as second:
        now = await worker_pids(second)
    assert "found workers" not in (tmp_path / "second").read_text()
    assert sorted(now) == ["decode-0", "decode-1"]
    assert not set(now.values()) & set(before.values())


async def test_a_cluster_grows_and_shrinks_under_load_through_any_router(
    small: SmallModel, answers: Answers, ray_address: str, tmp_path: Path
) -> None:
    with joined(small, ray_address, tmp_path / "first") as first:
        before = await worker_pids(first)
        async with Load(first.clients(CLIENTS), answers) as load:
            await load.everybody_streams()
            assert await first.operate("scale", "decode", "2") == "decode workers: decode-0, decode-1\n"
            grown = await worker_pids(first)
            assert before.items() < grown.items()
            with joined(small, ray_address, tmp_path / "second") as second:
                assert await worker_pids(second) == grown, "it does not know the number that was asked for"
                await second.operate("scale", "decode", "1")
                assert await worker_pids(second) == before
            await load.everybody_streams(since=time.monotonic())
        assert not load.refusals
        assert await worker_pids(first) == before
        await all_ended([grown["decode-1"]])
        await first.all_pages_back()


async def test_stop_with_workers_ends_them_and_gives_their_room_back(
    small: SmallModel, ray_address: str, tmp_path: Path
) -> None:
    with joined(small, ray_address, tmp_path / "first") as first:
        before = await worker_pids(first)
        await first.operate("stop", "--workers")
        assert first.running.process.wait(60) == 0
    await all_ended(before.values())
    flags = ("--cluster-name", "another")
    with joined(small, ray_address, tmp_path / "second", *flags) as second:
        assert len(await worker_pids(second)) == WORKERS
        pids = await worker_pids(second)
    settings = tmp_path / "router.yaml"
    settings.write_text(f"model: {small.folder}\nray-address: {ray_address}\ncluster-name: another\n")
    said = await second.operate("stop", "--workers", "--config", str(settings))
    assert "decode-0, prefill-0" in said
    await all_ended(pids.values())


async def test_a_router_whose_workers_were_ended_through_another_one_ends_too(
    small: SmallModel, ray_address: str, tmp_path: Path
) -> None:
    flags = ("--drain-timeout", "5", "--cluster-name", "ended")
    with (
        joined(small, ray_address, tmp_path / "first", *flags) as first,
        joined(small, ray_address, tmp_path / "second", *flags) as second,
    ):
        workers = await worker_pids(second)
        await first.operate("stop", "--workers", "--force")
        assert await asyncio.to_thread(first.running.process.wait, 60) == 0
        assert await asyncio.to_thread(second.running.process.wait, 60) == 3
        assert "were ended through another router" in second.running.text()
        await all_ended(workers.values())


async def ended(service: Service) -> None:
    """In an orderly way."""
    service.running.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(service.running.process.wait, 60) == 0


async def test_two_routers_and_their_workers_are_replaced_without_a_failed_request(
    small: SmallModel, answers: Answers, ray_address: str, tmp_path: Path
) -> None:
    """As an upgrade does it: a router is taken off the balancer, ended, and started with other settings."""
    new = ("--max-running-requests", "32")
    with ExitStack() as routers:
        old, first = (routers.enter_context(joined(small, ray_address, tmp_path / name)) for name in "ab")
        before = await worker_pids(old)
        async with Load(old.clients(CLIENTS), answers) as through_old:
            await through_old.everybody_streams()
            await ended(first)
            upgraded = routers.enter_context(joined(small, ray_address, tmp_path / "c", *new))
            for worker in ("decode-0", "prefill-0"):
                await upgraded.says(f"{worker} is ready again", 0, 90.0)
            await through_old.everybody_streams(since=time.monotonic())
        async with Load(upgraded.clients(CLIENTS), answers) as through_new:
            await through_new.everybody_streams()
            await ended(old)
            last = routers.enter_context(joined(small, ray_address, tmp_path / "d", *new))
            after = await worker_pids(last)
            await through_new.everybody_streams(since=time.monotonic())
        assert not through_old.refusals
        assert not through_new.refusals
        assert not set(after.values()) & set(before.values())
        assert await worker_pids(upgraded) == after
        await last.all_pages_back()


async def test_a_stream_of_a_killed_router_breaks_and_its_retry_hits_the_prefix_cache(
    small: SmallModel, answers: Answers, ray_address: str, tmp_path: Path
) -> None:
    question = small.question(1000, length=600, max_tokens=1000)
    body = {"prompt": question.prompt, "max_tokens": 1000, "temperature": 0, "ignore_eos": True}
    headers = {"idempotency-key": "7c1e"}  # accepted; what was computed is found by its tokens
    with (
        joined(small, ray_address, tmp_path / "first") as first,
        joined(small, ray_address, tmp_path / "second") as second,
    ):

        async def stream(client: httpx.AsyncClient) -> None:
            url, chunks = f"{first.url}/v1/completions", 0
            async with client.stream("POST", url, json=body | {"stream": True}) as answer:
                async for _ in answer.aiter_lines():
                    chunks += 1
                    if chunks == 20:
                        first.running.process.kill()

        async with httpx.AsyncClient(timeout=60, headers=headers) as client:
            with pytest.raises(httpx.TransportError):
                await stream(client)
            answer = (await client.post(f"{second.url}/v1/completions", json=body)).json()
        assert answer["choices"][0]["text"] == small.text(small.answer(question))
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > len(question.prompt) // 2
        await second.all_pages_back()


async def statuses(service: Service, key: str, bodies: list[dict[str, object]]) -> list[int]:
    """Statuses of streamed requests that are asked at once, each of which is read to its end if it is
    accepted.
    """

    async def ask(client: httpx.AsyncClient, body: dict[str, object]) -> int:
        async with client.stream("POST", f"{service.url}/v1/completions", json=body) as stream:
            await stream.aread()
            return stream.status_code

    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(timeout=60, headers=headers) as client:
        return await asyncio.gather(*(ask(client, body) for body in bodies))


async def test_routers_together_keep_to_the_limit_of_a_key(
    small: SmallModel, ray_address: str, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("0123456789abcdef\n")
    keys.chmod(0o600)
    flags = ("--api-key-file", str(keys), "--max-requests-per-key", "7")
    bodies: list[dict[str, object]] = [
        {"prompt": [9, seed, 3], "max_tokens": 1200, "ignore_eos": True, "stream": True} for seed in range(8)
    ]
    with joined(small, ray_address, tmp_path / "first", *flags) as first:
        with joined(small, ray_address, tmp_path / "second", *flags) as second:
            await asyncio.sleep(3.0)  # until the workers have reported both routers to both
            both = await asyncio.gather(
                *(statuses(service, "0123456789abcdef", bodies) for service in (first, second))
            )
            assert sorted(both[0] + both[1]) == 7 * [200] + 9 * [429]
            assert abs(both[0].count(200) - both[1].count(200)) == 1
        await asyncio.sleep(3.0)
        alone = await statuses(first, "0123456789abcdef", bodies)
        assert sorted(alone) == 7 * [200] + [429]
