"""`router cache`: what the workers answer, as an operator sees it."""

from __future__ import annotations

from typing import Any

from rpc.baton.v1 import worker_pb2
from tests.integration.fake_cluster import service
from tests.integration.fake_worker import FakeWorker, decode_worker
from tests.integration.router.membership.test_worker_drain import admin, command


class Caching(FakeWorker):
    """Has 40 pages of 16 tokens in its pool and 10 in host memory, until they are cleared."""

    async def Describe(  # noqa: N802
        self, request: worker_pb2.DescribeRequest, context: Any
    ) -> worker_pb2.WorkerInfo:
        info = await super().Describe(request, context)
        info.page_bytes = 1 << 20
        return info

    async def ManageCache(  # noqa: N802
        self, request: worker_pb2.ManageCacheRequest, context: Any
    ) -> worker_pb2.CacheReport:
        asked.append((self.worker_id, list(request.clear), request.key if request.HasField("key") else None))
        pages = {name: 0 if name in request.clear else count for name, count in (("pool", 40), ("host", 10))}
        return worker_pb2.CacheReport(
            places=[
                worker_pb2.CachePlace(name="pool", pages=pages["pool"], capacity=100, hit_tokens=750),
                worker_pb2.CachePlace(
                    name="host", pages=pages["host"], capacity=200, cleared=10 - pages["host"]
                ),
            ],
            page_tokens=16,
            input_tokens=1000,
            retained=[worker_pb2.RetainedSession(tenant="team", key="chat", tokens=64, seconds=7500)],
        )


asked: list[tuple[str, list[str], str | None]] = []


async def test_an_operator_lists_and_clears_what_is_cached() -> None:
    workers = [Caching(f"decode-{i}", worker_pb2.ROLE_DECODE) for i in range(2)]
    async with service(*workers) as served, admin(served) as server:
        asked.clear()
        status, output = await command(server, "cache", "--worker", "decode-1")
        lines = [line.split() for line in output.splitlines()]
        assert status == 0
        assert lines[0] == ["decode-1:", "1,000", "input", "tokens"]
        assert lines[2][:2] == ["pool", "640"]
        assert lines[2][-2:] == ["750", "75.0%"]
        assert lines[3][:2] == ["host", "160"]
        assert output.splitlines()[4] == "  retained by team/chat: 64 tokens, for 2 h 5 min"
        assert asked == [("decode-1", [], None)]

        asked.clear()
        status, output = await command(server, "cache", "clear", "--place", "host", "--key", "chat")
        assert status == 0
        assert output.count("10 MiB cleared") == 2
        assert sorted(asked) == [("decode-0", ["host"], "chat"), ("decode-1", ["host"], "chat")]

        asked.clear()
        await command(server, "cache", "clear", "--worker", "decode-0")
        assert asked == [("decode-0", ["pool", "host", "disk", "object"], None)]

        _, output = await command(server, "cache", "clear", "--place", "disk")
        assert output.startswith("nothing was cleared: ")


async def test_what_cannot_be_listed_or_cleared_is_said() -> None:
    worker = decode_worker("decode-0")
    async with service(worker) as served, admin(served) as server:
        status, output = await command(server, "cache", "--worker", "decode-7")
        assert (status, "there is no worker decode-7: decode-0" in output) == (1, True)
        status, output = await command(server, "cache", "--key", "chat")
        assert (status, "router cache clear" in output) == (1, True)
        status, output = await command(server, "cache")  # this worker does not implement the call
        assert (status, output.startswith("decode-0: ")) == (0, True)
