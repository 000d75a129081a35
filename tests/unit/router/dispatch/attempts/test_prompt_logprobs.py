"""Log-probabilities of the prompt reach the client, whatever becomes of the attempt that computed them."""

from __future__ import annotations

import asyncio

from router.dispatch.attempts.mixed_attempt import MixedAttempt
from router.dispatch.failures import AttemptFailed
from router.dispatch.routing.route import Route
from router.dispatch.sequence import SequenceState
from router.dispatch.waterfall import Waterfall
from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.unit.router.dispatch.attempts.played_workers import PlayedWorker


def test_a_retry_keeps_those_that_a_slow_reader_has_not_read_yet() -> None:
    async def compute_on_two_workers() -> None:
        sampling = sampling_pb2.SamplingParams(max_tokens=2, prompt_logprobs=0)
        sequence = SequenceState(worker_pb2.Work(prompt=[1] * 10, sampling=sampling), Waterfall(0.0))
        logprobs = sampling_pb2.PromptLogprobs(logprobs=[-1.0] * 9)
        first, second = PlayedWorker("first", {}), PlayedWorker("second", {})

        attempt = asyncio.create_task(_attempt(sequence, first).run())
        await asyncio.sleep(0)
        first.obey()
        (job,) = first.can_compute()
        output = worker_pb2.Output(request_id=job.work.request_id, prompt_logprobs=logprobs)
        first.events.append(output)
        first.compute(job)  # starts
        first.compute(job)  # its first token
        for _ in range(3):
            first.deliver()
        first.lose()
        (error,) = await asyncio.gather(attempt, return_exceptions=True)
        assert isinstance(error, AttemptFailed)
        assert len(sequence.output) == 1

        attempt = asyncio.create_task(_attempt(sequence, second).run())
        await asyncio.sleep(0)
        second.obey()
        (job,) = second.can_compute()
        second.compute(job)
        second.compute(job)
        while second.events:
            second.deliver()
        await attempt
        assert sequence.stream.delta.outputs == [output]

    asyncio.run(compute_on_two_workers())


def _attempt(sequence: SequenceState, worker: PlayedWorker) -> MixedAttempt:
    return MixedAttempt(sequence, Route(lambda _: worker, is_local=True, why=""))  # type: ignore[arg-type, return-value]
