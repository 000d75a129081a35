"""Whose fault a failed handoff is: the circuit breaker must not suspect a worker for what its sender did."""

from __future__ import annotations

import asyncio
from typing import Any

from router.dispatch.attempts.attempt import Attempt
from router.dispatch.attempts.disagg_attempt import DisaggAttempt
from router.dispatch.attempts.mixed_attempt import MixedAttempt
from router.dispatch.failures import AttemptFailed
from router.dispatch.routing.route import Route
from router.dispatch.sequence import SequenceState
from router.dispatch.waterfall import Waterfall
from rpc.baton.v1 import sampling_pb2, worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_PREFILL
from tests.unit.router.dispatch.attempts.played_workers import Handoff, PlayedWorker


class Cluster:
    def __init__(self) -> None:
        self.network: dict[int, Handoff] = {}
        self.source, self.target = (PlayedWorker(name, self.network) for name in ("source", "target"))
        self.error: Exception | None = None

    def sequence(self, max_tokens: int = 8) -> SequenceState:
        return SequenceState(
            worker_pb2.Work(prompt=[1] * 10, sampling=sampling_pb2.SamplingParams(max_tokens=max_tokens)),
            Waterfall(0.0),
        )

    def disagg(self, max_tokens: int = 8) -> DisaggAttempt:
        route = Route(
            lambda role: self.source if role == ROLE_PREFILL else self.target,  # type: ignore[arg-type, return-value]
            is_local=False,
            why="",
        )
        return DisaggAttempt(self.sequence(max_tokens), route, 10.0)

    def start(self, attempt: Attempt) -> asyncio.Task[None]:
        async def read() -> None:
            try:
                await attempt.run()
            except AttemptFailed as error:
                self.error = error

        return asyncio.create_task(read())

    async def settle(self) -> None:
        """All commands are carried out, and all events are delivered."""
        for _ in range(8):
            for worker in (self.source, self.target):
                while worker.commands:
                    worker.obey()
                while worker.events:
                    worker.deliver()
            await asyncio.sleep(0)

    async def compute(self, worker: PlayedWorker) -> None:
        worker.compute(worker.can_compute()[0])
        await self.settle()

    def fail(
        self, request_id: int, code: worker_pb2.FailureCode, reporter: PlayedWorker | None = None
    ) -> None:
        """A worker, by default the target, reports that the handoff has failed."""
        failed: Any = worker_pb2.Failed(request_id=request_id, code=code, message="test")
        (reporter or self.target).events.append(failed)


def test_a_target_is_not_suspected_when_the_source_refuses_to_move_answers() -> None:
    async def move_three_times() -> None:
        cluster = Cluster()
        attempt = MixedAttempt(
            cluster.sequence(),
            Route(lambda _: cluster.source, is_local=True, why=""),  # type: ignore[arg-type, return-value]
        )
        client = cluster.start(attempt)
        await cluster.settle()
        await cluster.compute(cluster.source)
        await cluster.compute(cluster.source)
        for _ in range(3):
            moving = asyncio.create_task(attempt.migrate(cluster.target, 5.0))  # type: ignore[arg-type]
            await cluster.settle()
            (handoff_id,) = cluster.network
            cluster.fail(handoff_id, worker_pb2.FAILURE_CODE_SENDER)
            await cluster.settle()
            assert not await moving
        assert cluster.target.breaker.failures == cluster.source.breaker.failures == 0
        assert attempt.decoder is cluster.source
        client.cancel()
        await asyncio.wait([client])

    asyncio.run(move_three_times())


def test_a_prefill_worker_that_aborts_its_handoff_is_blamed_and_not_the_decode_worker() -> None:
    async def hand_over() -> None:
        cluster = Cluster()
        client = cluster.start(cluster.disagg())
        await cluster.settle()
        await cluster.compute(cluster.source)
        (handoff_id,) = cluster.network
        cluster.fail(handoff_id, worker_pb2.FAILURE_CODE_SENDER)
        await cluster.settle()
        assert not client.done()  # the sender reports, too
        cluster.fail(handoff_id, worker_pb2.FAILURE_CODE_HANDOFF, cluster.source)
        await cluster.settle()
        await client
        assert isinstance(cluster.error, AttemptFailed)
        assert cluster.error.worker_id == "source"
        assert (cluster.source.breaker.failures, cluster.target.breaker.failures) == (1, 0)

    asyncio.run(hand_over())


def test_an_answer_that_ends_with_its_first_token_needs_no_handoff_whatever_arrives_first() -> None:
    async def hand_over() -> None:
        cluster = Cluster()
        client = cluster.start(cluster.disagg(max_tokens=1))
        await cluster.settle()
        cluster.source.compute(cluster.source.can_compute()[0])
        cluster.source.deliver()  # started
        await asyncio.sleep(0)
        cluster.target.obey()
        cluster.target.deliver()  # reserved: the ticket is sent
        cluster.source.compute(cluster.source.can_compute()[0])  # the only token
        cluster.source.obey()  # attach: there is no handoff any more; the target's report overtakes the token
        cluster.target.deliver()
        await asyncio.sleep(0)
        cluster.source.deliver()
        await client
        assert cluster.error is None
        assert cluster.target.breaker.failures == cluster.source.breaker.failures == 0

    asyncio.run(hand_over())
