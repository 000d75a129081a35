"""A worker without a model, which produces a token per request and step, to measure the router."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import grpc

from common.version import build
from rpc.baton.v1 import sampling_pb2, worker_pb2, worker_pb2_grpc
from rpc.channel import SERVER_OPTIONS, Endpoint

_Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"
_GOES_ON: Final = sampling_pb2.FINISH_REASON_UNSPECIFIED
_ENDS: Final = sampling_pb2.FINISH_REASON_LENGTH


@dataclass(slots=True, eq=False)
class MockRequest:
    """One request in work."""

    request_id: int
    left: int
    sent_at: list[float] = field(default_factory=list)
    """When each token was given to gRPC, time.monotonic()."""


class MockWorker(worker_pb2_grpc.WorkerServicer):
    """One decode worker, whose engine takes `step_s` seconds a step, whatever there is to do."""

    def __init__(self, words: Sequence[int], worker_id: str = "decode-0") -> None:
        """`words`: the tokens to send, in turn."""
        self.step_s = 1.0
        self._words = words
        self._worker_id = worker_id
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        worker_pb2_grpc.add_WorkerServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.by_prompt: dict[int, MockRequest] = {}
        """Requests by the first token of the prompt, which identifies them."""

    async def start(self) -> Endpoint:
        """Where it listens, on loopback and in plaintext."""
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return Endpoint(f"127.0.0.1:{port}")

    async def stop(self) -> None:
        await self._server.stop(None)

    async def Describe(  # noqa: N802
        self, request: worker_pb2.DescribeRequest, context: _Context
    ) -> worker_pb2.WorkerInfo:
        return worker_pb2.WorkerInfo(
            worker_id=self._worker_id, role=worker_pb2.ROLE_DECODE, epoch=1, max_model_len=8192, build=build()
        )

    async def Session(  # noqa: N802
        self, commands: AsyncIterator[worker_pb2.Command], context: _Context
    ) -> AsyncIterator[worker_pb2.EventBatch]:
        requests: dict[int, MockRequest] = {}
        reader = asyncio.create_task(self._read(commands, requests))
        step, next_step = 0, time.monotonic()
        try:
            while True:
                yield self._step_events(step, requests)
                step += 1
                next_step = max(next_step + self.step_s, time.monotonic())
                await asyncio.sleep(next_step - time.monotonic())
        finally:
            reader.cancel()

    async def _read(
        self, commands: AsyncIterator[worker_pb2.Command], requests: dict[int, MockRequest]
    ) -> None:
        async for command in commands:
            if command.WhichOneof("kind") == "submit":
                work = command.submit.work
                request = MockRequest(work.request_id, work.sampling.max_tokens)
                requests[work.request_id] = self.by_prompt[work.prompt[0]] = request
            elif command.WhichOneof("kind") == "abort":
                requests.pop(command.abort.request_id, None)

    def _step_events(self, step: int, requests: dict[int, MockRequest]) -> worker_pb2.EventBatch:
        now = time.monotonic()
        batch = worker_pb2.EventBatch(step=step)
        for request in list(requests.values()):
            position = len(request.sent_at)
            word = self._words[position % len(self._words)]
            request.sent_at.append(now)
            request.left -= 1
            finish = _GOES_ON if request.left else _ENDS
            tokens = worker_pb2.Tokens(ids=[word], finish=finish, position=position)
            batch.outputs.add(request_id=request.request_id, tokens=tokens)
            if not request.left:
                del requests[request.request_id]
        return batch
