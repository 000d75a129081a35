"""One running request and its completions."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from router.api.generation.completion import Chunk, Completion
from router.api.generation.generation_request import GenerationRequest
from router.api.generation.history import CompletionRecord, History, RequestRecord
from router.api.generation.tenants import ANYBODY, CURRENT_TENANT, Tenant
from router.dispatch.interface import Dispatcher
from router.dispatch.request_status import RequestStatus
from router.dispatch.sequence import CURRENT_REQUEST, SequenceRequest
from router.dispatch.token_stream import Delta, Interrupt, TokenStream
from router.dispatch.waterfall import without_workers
from router.errors import Internal, InvalidRequest, RouterError
from rpc.baton.v1 import router_pb2, sampling_pb2


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    """Reasoning tokens among `completion_tokens`."""
    accepted_predicted: int = 0
    """Tokens of the client's prediction that were drafted and right."""
    rejected_predicted: int = 0
    """And those that were drafted and wrong."""


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """One completion: the dispatcher's input, and the processing of its tokens."""

    request: SequenceRequest
    completion: Completion


class Run:
    """One running request."""

    def __init__(
        self,
        model: str,
        request: GenerationRequest,
        sequences: Sequence[SequencePlan],
        dispatcher: Dispatcher,
        running: Running,
        history: History | None = None,
    ) -> None:
        """The run is in `running` while it runs, and in `history` when it has ended.

        It belongs to the current tenant.
        """
        self.model: Final = model
        """The served model's name."""
        self.request: Final = request
        self._sequences: Final = sequences
        self._dispatcher: Final = dispatcher
        self._running: Final = running
        self._history: Final = history
        self._ended: dict[int, tuple[int, router_pb2.Timings | None]] = {}
        """Finish reason and timings of completions, by index."""
        self._cut: dict[int, tuple[RequestStatus, router_pb2.Timings]] = {}
        """Stage and timings of completions that ended before their last token, by index."""
        self._tenant: Final = CURRENT_TENANT.get()
        self.identity: Final = CURRENT_REQUEST.get()
        """The request's identity at the dispatcher."""
        self._began = time.monotonic()
        self._was_aborted = False
        self._interrupt: Final = Interrupt()
        self._streams: Final[list[TokenStream]] = []
        self._is_paused = False

    @property
    def num_completions(self) -> int:
        return len(self._sequences)

    def prompt(self, index: int) -> Sequence[int]:
        """Token ids of the prompt that completion `index` continues."""
        return self._sequences[index].request.prompt

    def retained(self, index: int) -> list[tuple[int, float]]:
        """Tokens of beginnings of a prompt that are retained, and for how many seconds."""
        request = self._sequences[index].request
        if (retention := request.retention) is None:
            return []
        prefixes = [(prefix.tokens, prefix.seconds) for prefix in retention.prefixes]
        whole = [(len(request.prompt), retention.seconds)] if retention.seconds else []
        return prefixes + whole

    @property
    def usage(self) -> Usage:
        """Usage so far. A prompt counts once, independent of its number of completions."""
        firsts = self._sequences[:: self.request.n]
        return Usage(
            prompt_tokens=sum(len(sequence.request.prompt) for sequence in firsts),
            completion_tokens=sum(sequence.completion.num_tokens for sequence in self._sequences),
            cached_tokens=sum(sequence.completion.cached_tokens for sequence in firsts),
            reasoning_tokens=sum(sequence.completion.reasoning_tokens for sequence in self._sequences),
            accepted_predicted=sum(sequence.completion.accepted_predicted for sequence in self._sequences),
            rejected_predicted=sum(sequence.completion.rejected_predicted for sequence in self._sequences),
        )

    def usage_of(self, index: int) -> Usage:
        """Usage of one completion, with its prompt."""
        sequence = self._sequences[index]
        completion = sequence.completion
        return Usage(
            len(sequence.request.prompt),
            completion.num_tokens,
            completion.cached_tokens,
            completion.reasoning_tokens,
        )

    async def serve(self, deliver: Callable[[Chunk], object]) -> None:
        """Pass new text to `deliver`, until every completion has a finish reason. Call it once.

        Cancelling the call aborts the request on the workers. Raises RouterError if a completion fails, which
        ends all of them, and any error of `deliver`.
        """
        with self._tenant.request(self.num_completions), self._listed(), self._remembered():
            try:
                await self._interrupt.wait(self._complete_all(deliver))
            except _Aborted:
                self._was_aborted = True
                for sequence in self._sequences:
                    if sequence.completion.index not in self._ended:
                        deliver(sequence.completion.abort())

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """What `serve` delivers; text is merged while the caller does not ask for the next chunk."""
        chunks: deque[Chunk] = deque()
        news = asyncio.Event()

        def deliver(chunk: Chunk) -> None:
            chunks.append(chunk)
            self.pause()
            news.set()

        serving = asyncio.create_task(self.serve(deliver))
        serving.add_done_callback(lambda _: news.set())
        try:
            while not serving.done() or chunks:
                await news.wait()
                news.clear()
                while chunks:
                    yield chunks.popleft()
                self.resume()
            await serving
        finally:
            serving.cancel()
            await asyncio.wait([serving])

    def pause(self) -> None:
        """Merge new text until `resume`; some chunks may still come, the last ones."""
        self._is_paused = True
        for stream in self._streams:
            stream.pause()

    def resume(self) -> None:
        self._is_paused = False
        for stream in self._streams:
            stream.resume()

    def abort(self) -> None:
        """Finish all completions now, with FINISH_REASON_ABORT."""
        self._interrupt.trigger(_Aborted())

    def fail(self, error: RouterError) -> None:
        """Make `serve` raise `error`."""
        self._interrupt.trigger(error)

    @contextmanager
    def _listed(self) -> Iterator[None]:
        """Context in which the run can be found by its tenant and id."""
        key = (self._tenant, self.request.id)
        if key in self._running:
            raise InvalidRequest(
                f"A request with the id {self.request.id!r} is running already.", param="request_id"
            )
        self._running[key] = self
        try:
            yield
        finally:
            del self._running[key]

    @contextmanager
    def _remembered(self) -> Iterator[None]:
        """Context at whose end the run's outcome and duration are added to the history."""
        self._began = time.monotonic()
        outcome, message = "ok", ""
        try:
            yield
            if self._was_aborted:
                outcome = "abort"
        except RouterError as error:
            outcome, message = error.code or "error", str(error)
            raise
        except BaseException:  # the client went away
            outcome = "abort"
            raise
        finally:
            if self._history is not None:
                self._history.add(self.record(outcome, message))

    def record(self, outcome: str, message: str = "") -> RequestRecord:
        """What is known of it now."""
        usage = self.usage
        return RequestRecord(
            id=self.request.id,
            clients_id=self.identity.clients_id if self.identity else "",
            client=self._tenant.name,
            outcome=outcome,
            message=message,
            seconds=time.monotonic() - self._began,
            priority=self.request.priority,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completions=[self._completion(index) for index in range(self.num_completions)],
        )

    def _completion(self, index: int) -> CompletionRecord:
        finish, timings = self._ended.get(index, (sampling_pb2.FINISH_REASON_UNSPECIFIED, None))
        name = sampling_pb2.FinishReason.Name(finish)
        tokens = self._sequences[index].completion.num_tokens
        status = None
        if index in self._cut:
            status, timings = self._cut[index]
        return CompletionRecord(name.removeprefix("FINISH_REASON_").lower(), tokens, timings, status)

    async def _complete_all(self, deliver: Callable[[Chunk], object]) -> None:
        if len(self._sequences) == 1:
            return await self._complete(self._sequences[0], deliver)
        tasks = [asyncio.create_task(self._complete(sequence, deliver)) for sequence in self._sequences]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _complete(self, sequence: SequencePlan, deliver: Callable[[Chunk], object]) -> None:
        completion = sequence.completion
        last: Chunk | None = None

        def on_delta(delta: Delta) -> bool:
            nonlocal last
            chunk = completion.feed(delta)
            if not chunk.finish:
                deliver(chunk)
                return False
            last = chunk
            return not delta.finish

        def on_cut(status: RequestStatus, timings: router_pb2.Timings) -> None:
            self._cut[completion.index] = status, timings

        stream = TokenStream(on_delta)
        self._streams.append(stream)
        if self._is_paused:
            stream.pause()
        timings = await self._dispatcher.generate(sequence.request, stream, on_cut)
        if last is None:
            raise Internal("The completion ended without a finish reason.")
        self._ended[completion.index] = (last.finish, timings)
        if self.request.timings:
            last.timings = timings if self._tenant is ANYBODY else without_workers(timings)
        deliver(last)


Running: TypeAlias = dict[tuple[Tenant, str], Run]
"""Runs by tenant and request id, so that ids of different tenants do not collide."""


class _Aborted(Exception):
    """The client aborted the request."""
