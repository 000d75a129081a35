"""One worker leaves, or is restarted, while requests run: none of them fails."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from router.command.admin.drain import CannotChangeRole, LastWorker, NoSuchWorker, WorkerDrainer
from router.command.admin.endpoint import AdminServer, ManagedModel, admin_app
from router.config.choices import Routing
from router.dispatch.workers.member import WorkerState
from rpc.baton.v1.worker_pb2 import ROLE_PREFILL
from tests.integration.fake_cluster import PROMPT, Service, service
from tests.integration.fake_worker import FakeWorker, answer, decode_worker, prefill_worker


def four() -> list[FakeWorker]:
    fabric: dict[int, asyncio.Event] = {}
    return [
        *(prefill_worker(f"prefill-{i}", fabric) for i in range(2)),
        *(decode_worker(f"decode-{i}", fabric, token_s=0.01) for i in range(2)),
    ]


def states(served: Service) -> dict[str, WorkerState]:
    return {member.handle.worker_id: member.state for member in served.registry.members()}


@asynccontextmanager
async def load(
    served: Service, lengths: tuple[int, ...] = (5, 40, 150)
) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Eight clients at a time, until the block is left; each checks every answer."""
    stop = False
    length = itertools.cycle(lengths)

    async def client() -> None:
        while not stop:
            count = next(length)
            assert await served.tokens(count) == answer(PROMPT, count)

    clients = [asyncio.create_task(client()) for _ in range(8)]
    await asyncio.sleep(0.1)
    yield clients
    stop = True
    await asyncio.gather(*clients)


async def test_a_worker_with_time_finishes_what_it_has_and_gets_nothing_new() -> None:
    workers = [decode_worker(f"decode-{i}", token_s=0.02) for i in range(2)]
    async with service(*workers, routing=Routing.LEAST_LOADED) as served:
        running = [asyncio.create_task(served.tokens(20)) for _ in range(4)]
        await asyncio.sleep(0.1)
        leaving = asyncio.create_task(WorkerDrainer(served.registry).drain("decode-0", 10.0))
        await asyncio.sleep(0)
        assert states(served)["decode-0"] is WorkerState.DRAINING
        before = len(workers[0].commands("submit"))
        assert await served.tokens(3) == answer(PROMPT, 3)
        assert await leaving == 0
        assert [await task for task in running] == [answer(PROMPT, 20)] * 4
        assert len(workers[0].commands("submit")) == before == 2
        assert states(served)["decode-0"] is WorkerState.STOPPED
        await asyncio.sleep(0.5)
        assert states(served)["decode-0"] is WorkerState.STOPPED  # no client returns it to service


async def test_requests_unfinished_at_the_drain_timeout_continue_elsewhere_even_without_attempts_left() -> (
    None
):
    workers = [decode_worker(f"decode-{i}", token_s=0.02) for i in range(2)]
    async with service(*workers, max_attempts=1, routing=Routing.LEAST_LOADED) as served:
        running = [asyncio.create_task(served.tokens(60)) for _ in range(4)]
        await asyncio.sleep(0.2)
        assert await WorkerDrainer(served.registry).drain("decode-0", 0.1) == 2
        assert [await task for task in running] == [answer(PROMPT, 60)] * 4
        await served.settled()


async def test_a_restart_waits_for_a_drain_of_the_same_worker() -> None:
    workers = [decode_worker(f"decode-{i}", token_s=0.02) for i in range(2)]
    async with service(*workers, routing=Routing.LEAST_LOADED) as served:
        running = [asyncio.create_task(served.tokens(40)) for _ in range(4)]
        await asyncio.sleep(0.1)
        drainer = WorkerDrainer(served.registry)
        draining = asyncio.create_task(drainer.drain("decode-0", 10.0))
        await asyncio.sleep(0)
        assert await drainer.restart("decode-0", 0.0, 5.0) == 0
        assert draining.done()
        assert [await task for task in running] == [answer(PROMPT, 40)] * 4
        assert states(served)["decode-0"] is WorkerState.READY


async def test_the_last_worker_stays_unless_it_is_forced_to_go() -> None:
    async with service(decode_worker("decode-0"), decode_worker("decode-1")) as served:
        drainer = WorkerDrainer(served.registry)
        with pytest.raises(NoSuchWorker, match="decode-0, decode-1"):
            await drainer.drain("decode-7", 1.0)
        await drainer.drain("decode-1", 1.0)
        with pytest.raises(LastWorker, match="decode-0"):
            await drainer.drain("decode-0", 1.0)
        assert await served.tokens() == answer(PROMPT, 8)
        await drainer.drain("decode-0", 1.0, force=True)
        assert not served.dispatcher.ready()
        await drainer.restart("decode-0", 1.0, 5.0, force=True)
        assert await served.tokens() == answer(PROMPT, 8)


async def test_every_worker_is_restarted_under_load_and_no_request_fails() -> None:
    workers = four()
    async with service(*workers) as served, load(served):
        epochs = [worker.epoch for worker in workers]
        for worker in workers:
            await WorkerDrainer(served.registry).restart(worker.worker_id, 0.3, 5.0)
        assert all(worker.epoch != epoch for worker, epoch in zip(workers, epochs, strict=True))
        assert set(states(served).values()) == {WorkerState.READY}


@asynccontextmanager
async def admin(served: Service) -> AsyncIterator[AdminServer]:
    server = AdminServer(
        admin_app(
            {
                "tiny": ManagedModel(
                    served.registry,
                    WorkerDrainer(served.registry),
                    drain_timeout_s=0.3,
                    startup_timeout_s=5.0,
                )
            }
        ),
        0,
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def command(server: AdminServer, *words: str) -> tuple[int | None, str]:
    """`router WORDS` as a process: exit status and output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "router.command.main",
        *words,
        "--admin-port",
        str(server.port),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_an_operator_lists_drains_and_restarts_workers_from_the_command_line() -> None:
    workers = four()
    async with service(*workers) as served, load(served), admin(served) as server:
        assert await command(server, "drain", "decode-1", "--timeout", "5") == (
            0,
            "decode-1 is drained; 0 of its requests moved to other workers\n",
        )
        _, listed = await command(server, "workers")
        assert [(*line.split()[:2], line.split()[6]) for line in listed.splitlines()] == [
            ("prefill-0", "prefill", "ready"),
            ("prefill-1", "prefill", "ready"),
            ("decode-0", "decode", "ready"),
            ("decode-1", "decode", "stopped"),
        ]
        assert (await command(server, "restart", "decode-1"))[0] == 0
        status, output = await command(server, "restart", "all")
        assert status == 0
        assert [line.split()[0] for line in output.splitlines()] == [w.worker_id for w in workers]


async def test_one_prefill_worker_is_restarted_under_load_while_decode_workers_prefill() -> None:
    workers = [worker for worker in four() if worker.worker_id != "prefill-1"]
    async with service(*workers) as served, load(served), admin(served) as server:
        status, output = await command(server, "restart", "all")
        assert status == 0, output
        assert [line.split()[0] for line in output.splitlines()] == [w.worker_id for w in workers]


async def test_a_worker_that_cannot_be_restarted_does_not_stop_the_restart_of_the_others() -> None:
    workers = [decode_worker(f"decode-{i}") for i in range(3)]
    async with service(*workers) as served, admin(served) as server:
        epochs = [worker.epoch for worker in workers]
        status, output = await command(server, "restart", "decode-0", "decode-7", "decode-1")
        assert status == 1
        assert "there is no worker decode-7" in output
        assert output.endswith("not restarted: decode-7\n")
        changed = [worker.epoch != epoch for worker, epoch in zip(workers, epochs, strict=True)]
        assert changed == [True, True, False]


async def test_a_restart_that_fails_half_way_leaves_the_worker_in_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = [decode_worker(f"decode-{i}") for i in range(2)]

    async def no_answer() -> None:
        raise RuntimeError("Ray does not answer\nTraceback")

    async with service(*workers) as served, admin(served) as server:
        monkeypatch.setattr(workers[0], "stop", no_answer)
        status, output = await command(server, "restart", "decode-0")
        assert status == 1
        assert "decode-0 was not restarted: Ray does not answer; " in output
        assert await served.registry.wait_for_all(5.0)
        status, output = await command(server, "drain", "decode-0")
        assert status == 1
        assert "decode-0 gets no requests, but its process may still run: Ray does not answer" in output
        monkeypatch.undo()
        assert (await command(server, "drain", "decode-0"))[0] == 0


async def test_an_operator_changes_a_worker_s_role_from_the_command_line() -> None:
    workers = four()
    for worker in workers:
        worker.transport = "fake"
    async with service(*workers) as served, admin(served) as server:
        output = "decode-1 is a prefill worker now\n"
        assert await command(server, "role", "decode-1", "prefill") == (0, output)
        ready = [session.worker_id for session in served.registry.ready(ROLE_PREFILL)]
        assert ready == ["prefill-0", "prefill-1", "decode-1"]
        status, refusal = await command(server, "role", "decode-0", "prefill")
        assert status == 1
        assert "decode-0 is the last worker of its role" in refusal
        assert (await command(server, "role", "decode-1", "decode"))[0] == 0
        assert (await command(server, "role", "decode-7", "decode"))[0] == 1
        assert await served.tokens() == answer(PROMPT, 8)


async def test_workers_of_a_mixed_cluster_have_no_roles() -> None:
    async with service(decode_worker("decode-0"), decode_worker("decode-1")) as served:
        with pytest.raises(CannotChangeRole, match="no KV transport"):
            await WorkerDrainer(served.registry).assign("decode-0", ROLE_PREFILL)


async def test_the_admin_port_refuses_nonsense_and_browsers() -> None:
    async with (
        service(decode_worker("decode-0")) as served,
        admin(served) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client,
    ):
        assert (await client.post("/workers/decode-9/drain")).status_code == 404
        assert (await client.post("/workers/decode-0/drain")).status_code == 409
        assert (await client.post("/workers/decode-0/drain?timeout=soon")).status_code == 400
        foreign = {"origin": "https://example.com"}
        assert (await client.post("/workers/decode-0/drain?force=1", headers=foreign)).status_code == 403
        assert (await client.get("/workers", headers=foreign)).status_code == 403
        assert (await client.get("/workers", headers={"host": "evil.example"})).status_code == 403
        assert (await client.get("/workers")).json()[0]["state"] == "ready"


async def test_an_unreachable_admin_port_is_an_error_of_one_line() -> None:
    server = AdminServer(None, 0)  # type: ignore[arg-type]
    server.port = 1
    status, output = await command(server, "workers")
    assert status == 1
    assert "no router answers on 127.0.0.1:1: Connection refused" in output
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    "answer",
    [PlainTextResponse("<html>"), JSONResponse({"error": {"message": "no"}}, 404), Response("x", 500)],
)
async def test_another_server_on_the_admin_port_is_told_in_one_line(answer: Response) -> None:
    server = AdminServer(Starlette(routes=[Route("/workers", lambda _: answer)]), 0)
    await server.start()
    try:
        status, output = await command(server, "workers")
    finally:
        await server.stop()
    assert status == 1
    assert f"127.0.0.1:{server.port} is not the admin port of a router" in output
    assert output.count("\n") == 1
