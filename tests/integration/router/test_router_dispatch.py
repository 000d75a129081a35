"""The dispatcher, registry and sessions against workers that speak real gRPC and invent their tokens."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from router.config.choices import Routing
from router.dispatch.token_stream import TokenStream
from router.errors import DeadlineExceeded, Internal, InvalidRequest, Overloaded, Unavailable
from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.integration.fake_cluster import PROMPT, pair, sampling, service
from tests.integration.fake_worker import answer, decode_worker
from tests.integration.reading import deltas_of


async def test_a_mixed_worker_answers_in_full() -> None:
    async with service(decode_worker("decode-0")) as served:
        deltas = await served.deltas(8)
        assert [t for d in deltas for t in d.token_ids] == answer(PROMPT, 8)
        assert deltas[-1].finish == sampling_pb2.FINISH_REASON_LENGTH
        assert [d.cached_tokens for d in deltas if d.cached_tokens is not None] == [3]
        await served.settled()


async def test_prefill_and_decode_workers_answer_together_as_one() -> None:
    prefill, decode = pair(decode={"waits_before": {"decode"}})
    async with service(prefill, decode) as served:
        seen: list[int] = []
        stream = TokenStream(lambda delta: seen.extend(delta.token_ids) is not None)
        answering = asyncio.create_task(
            served.dispatcher.generate(worker_pb2.Work(prompt=PROMPT, sampling=sampling(8)), stream)
        )
        async with asyncio.timeout(30):
            # The end of the handoff arrives on another stream than the tokens.
            while not served.metrics.recent.links:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        decode.behaviour.waits_before.clear()
        timings = await answering
        assert seen == answer(PROMPT, 8)
        stages = ("queue_s", "prefill_s", "reserve_s", "transfer_s", "first_decode_s")
        assert all(getattr(timings, stage) >= 0 for stage in stages)
        assert 0 < timings.ttft_s <= timings.e2e_s
        assert len(timings.chunks) == len(timings.pushes) == 1
        await served.settled()


async def test_the_decode_worker_gets_reserve_only_after_the_prefill_has_started() -> None:
    prefill, decode = pair()
    async with service(prefill, decode) as served:
        await served.tokens()
        (reserve,) = decode.commands("reserve")
        (attach,) = prefill.commands("attach")
        assert reserve.reserve.sender.name == f"prefill-0@{prefill.epoch}"
        assert attach.attach.ticket.handoff_id == reserve.reserve.work.request_id
        assert not prefill.commands("abort")
        assert not decode.commands("abort")


async def test_a_first_token_that_is_overtaken_still_comes_first() -> None:
    async with service(*pair(prefill={"late_first_token": True})) as served:
        assert await served.tokens(4) == answer(PROMPT, 4)


@pytest.mark.parametrize("max_tokens", [1, 8])
async def test_a_first_token_that_ends_the_sequence_cancels_the_reservation(max_tokens: int) -> None:
    async with service(*pair(prefill={"stop_at_first": max_tokens > 1})) as served:
        assert await served.tokens(max_tokens) == answer(PROMPT, 1)
        await served.settled()


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("how", ["break_after", "fail_after"])
async def test_a_mixed_request_survives_its_worker_at_any_token(how: str, at: int) -> None:
    async with service(decode_worker("decode-0", **{how: at})) as served:
        assert await served.tokens(6) == answer(PROMPT, 6)
        await served.settled()
        assert 'baton_request_retries_total{failed_worker="decode-0"' in served.exported()


@pytest.mark.parametrize("who", ["prefill", "decode"])
@pytest.mark.parametrize("how", [{"break_after": 0}, {"fail_after": 1}, {"break_after": 2}])
async def test_a_disaggregated_request_survives_either_worker(who: str, how: dict[str, int]) -> None:
    if who == "prefill" and how == {"break_after": 2}:
        pytest.skip("a prefill worker makes one token")
    async with service(*pair(**{who: how})) as served:
        assert await served.tokens(6) == answer(PROMPT, 6)
        await served.settled()


async def test_a_prefill_worker_that_dies_after_the_handoff_is_not_missed() -> None:
    prefill, decode = pair(decode={"token_s": 0.02})
    async with service(prefill, decode) as served:
        async with aclosing(deltas_of(served.dispatcher, PROMPT, sampling(20))) as deltas:
            seen = []
            async for delta in deltas:
                seen += delta.token_ids
                if len(seen) == 3:
                    await prefill.restart()
        assert seen == answer(PROMPT, 20)
        assert len(decode.commands("reserve")) == 1


async def test_ready_workers_are_counted_by_role() -> None:
    prefill, decode = pair()
    async with service(prefill, decode, decode_worker("decode-1")) as served:
        counted = [
            served.dispatcher.workers(role) for role in (worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE)
        ]
        assert counted == [1, 2]


async def test_a_restarted_worker_is_taken_in_again_as_a_new_peer() -> None:
    worker = decode_worker("decode-0")
    async with service(worker) as served:
        before = served.registry.sessions()[0].info.epoch
        await worker.restart()
        async with asyncio.timeout(30):
            while not served.dispatcher.ready() or served.registry.sessions()[0].info.epoch == before:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await served.tokens() == answer(PROMPT, 8)


async def test_a_silent_worker_is_lost_and_its_request_continues_on_another() -> None:
    silent, other = decode_worker("decode-0", token_s=0.01), decode_worker("decode-1")
    async with service(silent, other, routing=Routing.ROUND_ROBIN) as served:
        async with aclosing(deltas_of(served.dispatcher, PROMPT, sampling(500))) as deltas:
            seen = list((await anext(deltas)).token_ids)
            silent.behaviour.dumb = True
            async for delta in deltas:
                seen += delta.token_ids
        assert seen == answer(PROMPT, 500)
        assert 'failed_worker="decode-0"' in served.exported()


async def test_a_worker_with_nothing_to_do_is_not_taken_for_lost() -> None:
    async with service(decode_worker("decode-0")) as served:
        (session,) = served.registry.sessions()
        await asyncio.sleep(2.0)
        assert session.alive


async def test_a_retry_avoids_the_worker_that_failed() -> None:
    bad = decode_worker("decode-0", fail_after=0, times=100)
    good = decode_worker("decode-1")
    async with service(bad, good, routing=Routing.ROUND_ROBIN) as served:
        for _ in range(4):
            assert await served.tokens() == answer(PROMPT, 8)
        assert len(good.commands("submit")) == 4


async def test_attempts_are_bounded_and_the_error_is_that_of_the_last_one() -> None:
    worker = decode_worker("decode-0", fail_after=0, times=100)
    async with service(worker, max_attempts=3) as served:
        with pytest.raises(Unavailable, match="handoff failed"):
            await served.tokens()
        assert len(worker.commands("submit")) == 3


@pytest.mark.parametrize(
    ("code", "error", "attempts"),
    [
        (worker_pb2.FAILURE_CODE_INVALID, InvalidRequest, 1),
        (worker_pb2.FAILURE_CODE_DEADLINE, DeadlineExceeded, 1),
        (worker_pb2.FAILURE_CODE_INTERNAL, Internal, 1),
        (worker_pb2.FAILURE_CODE_OVERLOADED, Overloaded, 2),
    ],
)
async def test_what_a_worker_complains_of_reaches_the_client_as_its_own_error(
    code: worker_pb2.FailureCode, error: type[Exception], attempts: int
) -> None:
    worker = decode_worker("decode-0", fail_after=0, fail_code=code, times=100)
    async with service(worker, max_attempts=2) as served:
        with pytest.raises(error):
            await served.tokens()
        assert len(worker.commands("submit")) == attempts
        await served.settled()


async def test_a_request_whose_only_worker_stays_away_ends_in_a_clear_error() -> None:
    worker = decode_worker("decode-0", token_s=0.05)
    async with service(worker, failover_timeout=0.3) as served:
        deltas = deltas_of(served.dispatcher, PROMPT, sampling(100))
        await anext(deltas)
        await worker.stop()
        with pytest.raises(Unavailable, match="decode-0"):
            async for _ in deltas:
                pass
        with pytest.raises(Unavailable):
            await served.tokens()
        assert not served.dispatcher.ready()


async def test_a_new_request_waits_for_a_worker_as_a_running_one_does() -> None:
    worker = decode_worker("decode-0")
    async with service(worker) as served:
        await worker.stop()
        assert await served.registry.wait_until(lambda: not served.registry.sessions(), 5.0)
        waiting = asyncio.create_task(served.tokens())
        await asyncio.sleep(0)
        assert not served.dispatcher.ready()
        await worker.revive()
        assert await waiting == answer(PROMPT, 8)


@pytest.mark.parametrize("gone", [0, 1], ids=["prefill", "decode"])
async def test_workers_of_one_role_compute_whole_sequences_while_the_other_role_has_no_worker(
    gone: int,
) -> None:
    workers = pair(decode={"token_s": 0.01}, prefill={"token_s": 0.01})
    async with service(*workers) as served:
        running = asyncio.create_task(served.tokens(40))
        await asyncio.sleep(0.1)
        await workers[gone].stop()
        assert await served.tokens() == answer(PROMPT, 8)
        assert await running == answer(PROMPT, 40)
        await workers[gone].revive()
        assert await served.registry.wait_for_all(5.0)
        handoffs = len(workers[0].commands("attach"))
        assert await served.tokens() == answer(PROMPT, 8)
        assert len(workers[0].commands("attach")) == handoffs + 1


async def test_a_drain_without_ray_gives_the_streams_of_living_workers_their_time() -> None:
    prefill, decode = pair(decode={"token_s": 0.02})
    async with service(prefill, decode) as served:
        running = asyncio.create_task(served.tokens(40))
        await asyncio.sleep(0.2)
        await prefill.stop()
        assert await served.registry.wait_until(lambda: len(served.registry.sessions()) == 1, 5.0)
        assert await served.dispatcher.drain(10.0, workers_return=False) == 0
        assert await running == answer(PROMPT, 40)


async def test_a_drain_without_ray_does_not_wait_for_streams_without_a_worker() -> None:
    worker = decode_worker("decode-0", token_s=0.05)
    async with service(worker, failover_timeout=3600.0) as served:
        running = asyncio.create_task(served.tokens(100))
        await asyncio.sleep(0.2)
        await worker.stop()
        async with asyncio.timeout(30):
            assert await served.dispatcher.drain(3600.0, workers_return=False) == 0
        with pytest.raises(Unavailable):
            await running


@pytest.mark.parametrize("who", ["prefill", "decode"])
async def test_a_deadline_passes_and_both_workers_forget(who: str) -> None:
    async with service(*pair(**{who: {"silent": True}})) as served:
        with pytest.raises(DeadlineExceeded):
            await served.tokens(timeout_s=0.3)
        await served.settled()


@pytest.mark.parametrize("after", [0, 1, 2, 5])
@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_a_client_that_leaves_leaves_nothing_behind(how: str, after: int) -> None:
    async with service(*pair(decode={"token_s": 0.01})) as served:
        enough = asyncio.Event()

        async def client() -> None:
            seen = 0
            async with aclosing(deltas_of(served.dispatcher, PROMPT, sampling(1000))) as deltas:
                if after == 0:
                    enough.set()
                async for delta in deltas:
                    seen += len(delta.token_ids)
                    if seen >= after:
                        enough.set()
                        if how == "close":
                            return

        task = asyncio.create_task(client())
        await enough.wait()
        if how == "cancel":
            task.cancel()
        await asyncio.wait([task])
        await served.settled()
        assert await served.dispatcher.drain(1.0) == 0
