"""One running request and its completions."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from router.api.generation.audit.answer import Answer, OnAnswer
from router.api.generation.completion import Completion, OutputChunk
from router.api.generation.generation_request import GenerationRequest
from router.api.generation.history import CompletionRecord, History, RequestRecord
from router.api.generation.tenants import ANYBODY, CURRENT_TENANT, Tenant
from router.dispatch.adapters.table import Use
from router.dispatch.interface import Dispatcher
from router.dispatch.request_status import RequestStatus
from router.dispatch.sequence import CURRENT_REQUEST
from router.dispatch.token_stream import Delta, Interrupt, TokenStream
from router.dispatch.waterfall import without_workers
from router.errors import Internal, InvalidRequest, RouterError
from rpc.baton.v1 import router_pb2, sampling_pb2, worker_pb2


@dataclass(frozen=True, slots=True)
class TokenUsage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    """Reasoning tokens among `completion_tokens`."""
    accepted_predicted: int = 0
    """Tokens of the client's prediction that were drafted and right."""
    rejected_predicted: int = 0
    """And those that were drafted and wrong."""


class Run:
    """One running request."""

    def __init__(
        self,
        model: str,
        request: GenerationRequest,
        sequences: Sequence[tuple[worker_pb2.Work, Completion]],
        dispatcher: Dispatcher,
        running: Running,
        history: History | None = None,
        use: Use | None = None,
        on_answer: OnAnswer | None = None,
    ) -> None:
        """`sequences`: what each completion asks the dispatcher for, and the processing of its tokens. `use`:
        ends with the run. `on_answer`: gets every completion that is not aborted.

        The run is in `running` while it runs, and in `history` when it has ended.

        It belongs to the current tenant.
        """
        self.model: Final = model
        """The served model's name."""
        self.request: Final = request
        self._works: Final = [work for work, _ in sequences]
        self._completions: Final = [completion for _, completion in sequences]
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
        self._on_answer: Final = on_answer
        self._use: Final = use
        if use is not None:
            weakref.finalize(self, use.end)  # also of a run that is never served

    def is_named(self, names: Collection[str]) -> bool:
        """Whether its own id, or its client's, is one of these."""
        return self.request.id in names or (self.identity is not None and self.identity.clients_id in names)

    @property
    def num_completions(self) -> int:
        return len(self._completions)

    def prompt(self, index: int) -> Sequence[int]:
        """Token ids of the prompt that completion `index` continues."""
        return self._works[index].prompt

    def work(self, index: int) -> worker_pb2.Work:
        """What completion `index` asks the workers for."""
        return self._works[index]

    @property
    def usage(self) -> TokenUsage:
        """Usage so far. A prompt counts once, independent of its number of completions."""
        completions, n = self._completions, self.request.n
        return TokenUsage(
            prompt_tokens=sum(len(work.prompt) for work in self._works[::n]),
            completion_tokens=sum(completion.num_tokens for completion in completions),
            cached_tokens=sum(completion.cached_tokens for completion in completions[::n]),
            reasoning_tokens=sum(completion.reasoning_tokens for completion in completions),
            accepted_predicted=sum(completion.accepted_predicted for completion in completions),
            rejected_predicted=sum(completion.rejected_predicted for completion in completions),
        )

    def usage_of(self, index: int) -> TokenUsage:
        """Usage of one completion, with its prompt."""
        completion = self._completions[index]
        return TokenUsage(
            len(self._works[index].prompt),
            completion.num_tokens,
            completion.cached_tokens,
            completion.reasoning_tokens,
        )

    async def serve(self, deliver: Callable[[OutputChunk], object]) -> None:
        """Pass new text to `deliver`, until every completion has a finish reason. Call it once.

        Cancelling the call aborts the request on the workers. Raises RouterError if a completion fails, which
        ends all of them, and any error of `deliver`.
        """
        with self._tenant.request(self.num_completions), self._listed(), self._remembered():
            try:
                await self._interrupt.wait(self._complete_all(deliver))
            except _Aborted:
                self._was_aborted = True
                for completion in self._completions:
                    if completion.index not in self._ended:
                        deliver(completion.abort())
            finally:
                if self._use is not None:
                    self._use.end()

    async def chunks(self) -> AsyncGenerator[OutputChunk, None]:
        """What `serve` delivers; text is merged while the caller does not ask for the next chunk."""
        chunks: deque[OutputChunk] = deque()
        news = asyncio.Event()

        def deliver(chunk: OutputChunk) -> None:
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
            priority=self.request.work.priority,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completions=[self._completion(index) for index in range(self.num_completions)],
        )

    def _completion(self, index: int) -> CompletionRecord:
        finish, timings = self._ended.get(index, (sampling_pb2.FINISH_REASON_UNSPECIFIED, None))
        name = sampling_pb2.FinishReason.Name(finish)
        tokens = self._completions[index].num_tokens
        status = None
        if index in self._cut:
            status, timings = self._cut[index]
        return CompletionRecord(name.removeprefix("FINISH_REASON_").lower(), tokens, timings, status)

    async def _complete_all(self, deliver: Callable[[OutputChunk], object]) -> None:
        pairs = zip(self._works, self._completions, strict=True)
        if self.num_completions == 1:
            return await self._complete(*next(pairs), deliver)
        tasks = [asyncio.create_task(self._complete(*pair, deliver)) for pair in pairs]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _complete(
        self, work: worker_pb2.Work, completion: Completion, deliver: Callable[[OutputChunk], object]
    ) -> None:
        last: OutputChunk | None = None
        tokens: list[int] | None = None if self._on_answer is None else []

        def on_delta(delta: Delta) -> bool:
            nonlocal last
            chunk = completion.feed(delta)
            if tokens is not None:
                tokens.extend(chunk.token_ids)
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
        timings = await self._dispatcher.generate(work, stream, on_cut)
        if last is None:
            raise Internal("The completion ended without a finish reason.")
        self._ended[completion.index] = (last.finish, timings)
        if self.request.timings:
            last.timings = timings if self._tenant is ANYBODY else without_workers(timings)
        if self._on_answer is not None and tokens is not None:
            answer = Answer(work, self.request.options.stop, tokens, last.finish, stream.weights)
            last.extras = await self._on_answer(answer)
        deliver(last)


Running: TypeAlias = dict[tuple[Tenant, str], Run]
"""Runs by tenant and request id, so that ids of different tenants do not collide."""


class _Aborted(Exception):
    """The client aborted the request."""
