"""One running request and its completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from router.dispatch.identity import CURRENT_REQUEST
from router.dispatch.interface import Dispatcher
from router.dispatch.standing import Standing
from router.errors import Internal, InvalidRequest, RouterError
from router.processing.clients import CURRENT_CLIENT, Client
from router.processing.completion import Chunk, Completion
from router.processing.generation_request import GenerationRequest
from router.processing.history import CompletionRecord, History, RequestRecord
from router.processing.interrupt import Interrupt
from router.processing.merge import merge
from rpc.baton.v1 import router_pb2, sampling_pb2

__all__ = ["Run", "Running", "SequencePlan", "Usage"]


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    """Of `completion_tokens`."""


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """One completion: the dispatcher's input, and the processing of its tokens."""

    prompt: Sequence[int]
    sampling: sampling_pb2.SamplingParams
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

        It belongs to the current client.
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
        self._cut: dict[int, tuple[Standing, router_pb2.Timings]] = {}
        """Stage and timings of completions that ended before their last token, by index."""
        self._client: Final = CURRENT_CLIENT.get()
        self.identity: Final = CURRENT_REQUEST.get()
        """The request's identity at the dispatcher."""
        self._began = time.monotonic()
        self._was_aborted = False
        self._interrupt: Final = Interrupt()

    @property
    def num_completions(self) -> int:
        return len(self._sequences)

    def prompt(self, index: int) -> Sequence[int]:
        """Token ids of the prompt that completion `index` continues."""
        return self._sequences[index].prompt

    @property
    def usage(self) -> Usage:
        """Usage so far. A prompt counts once, independent of its number of completions."""
        firsts = self._sequences[:: self.request.n]
        return Usage(
            prompt_tokens=sum(len(sequence.prompt) for sequence in firsts),
            completion_tokens=sum(sequence.completion.num_tokens for sequence in self._sequences),
            cached_tokens=sum(sequence.completion.cached_tokens for sequence in firsts),
            reasoning_tokens=sum(sequence.completion.reasoning_tokens for sequence in self._sequences),
        )

    def usage_of(self, index: int) -> Usage:
        """Usage of one completion, with its prompt."""
        sequence = self._sequences[index]
        completion = sequence.completion
        return Usage(
            len(sequence.prompt),
            completion.num_tokens,
            completion.cached_tokens,
            completion.reasoning_tokens,
        )

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """New text, until every completion has a finish reason. Iterate once.

        Closing the generator, or cancelling the task that iterates it, aborts the request on the workers.
        Raises RouterError if a completion fails, which ends all of them.
        """
        with self._client.request(self.num_completions), self._listed(), self._remembered():
            streams = [self._stream(sequence) for sequence in self._sequences]
            source = streams[0] if len(streams) == 1 else merge(streams)
            try:
                async with aclosing(source):
                    while True:
                        yield await self._interrupt.wait(anext(source))
            except StopAsyncIteration:
                pass
            except _Aborted:
                self._was_aborted = True
                for sequence in self._sequences:
                    if not sequence.completion.finished:
                        yield sequence.completion.abort()

    def abort(self) -> None:
        """Finish all completions now, with FINISH_REASON_ABORT."""
        self._interrupt.trigger(_Aborted())

    def fail(self, error: RouterError) -> None:
        """Raise `error` where the chunks are awaited."""
        self._interrupt.trigger(error)

    @contextmanager
    def _listed(self) -> Iterator[None]:
        """Context in which the run can be found by its client and id."""
        key = (self._client, self.request.id)
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
            client=self._client.name,
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
        standing = None
        if index in self._cut:
            standing, timings = self._cut[index]
        return CompletionRecord(name.removeprefix("FINISH_REASON_").lower(), tokens, timings, standing)

    async def _stream(self, sequence: SequencePlan) -> AsyncGenerator[Chunk, None]:
        request, completion = self.request, sequence.completion

        def on_cut(standing: Standing, timings: router_pb2.Timings) -> None:
            self._cut[completion.index] = standing, timings

        deltas = self._dispatcher.generate(
            sequence.prompt,
            sequence.sampling,
            priority=request.priority,
            tenant=self._client.name,
            ttft_deadline_s=request.ttft_deadline_s,
            timeout_s=request.timeout_s,
            on_cut=on_cut,
        )
        async with aclosing(deltas):
            async for delta in deltas:
                chunk = completion.feed(delta)
                if chunk.finish and not delta.finish:
                    chunk.timings = (await deltas.asend(True)).timings
                if chunk.finish:
                    self._ended[completion.index] = (chunk.finish, chunk.timings)
                if not request.timings:
                    chunk.timings = None
                yield chunk
                if chunk.finish:
                    return
        raise Internal("The completion ended without a finish reason.")


Running: TypeAlias = dict[tuple[Client, str], Run]
"""By client and request id, so that ids of different clients do not collide."""


class _Aborted(Exception):
    """The client aborted the request."""
