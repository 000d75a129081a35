"""The tokens of a sequence, from its attempts to its reader.

Events of workers are handled when they arrive. Turning tokens into text and writing them to a socket costs
several times as much, so streams with new tokens wait in a `DeliveryQueue`, which delivers a bounded number
of them in a turn of the event loop. A router that keeps up delivers each token by itself. When it does not,
or when a reader is slow, the tokens of a stream that arrive meanwhile are merged into one delta.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from rpc.baton.v1 import sampling_pb2, worker_pb2

T = TypeVar("T")


class Interrupt:
    """Makes the current `wait` and all later ones raise once triggered.

    A wait costs two assignments: no second task, no event. `trigger` cancels the waiting task, and `wait`
    turns the cancellation into the error, like asyncio.timeout().
    """

    __slots__ = ("_error", "_waiting")

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._waiting: asyncio.Task[object] | None = None

    def trigger(self, error: Exception) -> None:
        """Raise `error` in `wait`. Only the first call counts."""
        if self._error is None:
            self._error = error
            if self._waiting is not None:
                self._waiting.cancel()

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """The result of `awaitable`. One wait at a time. Other cancellations are passed on."""
        if (error := self._error) is not None:
            raise error
        task = self._waiting = asyncio.current_task()
        try:
            return await awaitable
        except asyncio.CancelledError:
            if self._error is None or task is None or task.uncancel() > 0:
                raise
            raise self._error from None
        finally:
            self._waiting = None


_PER_TURN: Final = 8
"""Deliveries in a turn of the event loop. All events of a worker's step are handled in one turn
(`WorkerSession`): a busy router reads what has arrived before it delivers more, so that tokens are merged
instead of waiting in gRPC."""


@dataclass(slots=True)
class Delta:
    """New tokens of a sequence. Several steps may be merged into one delta."""

    token_ids: list[int] = field(default_factory=list)
    """Includes the stop token, which counts as generated but is not part of the text."""
    logprobs: list[sampling_pb2.TokenLogprobs] = field(default_factory=list)
    """One per token, or none."""
    outputs: list[worker_pb2.Output] = field(default_factory=list)
    """What the request gets besides tokens, in order: with the first delta, rows of tokens with any."""
    finish: int = sampling_pb2.FINISH_REASON_UNSPECIFIED
    """A sampling_pb2.FinishReason; unspecified (0) until the last delta."""
    stop_token: int | None = None
    """With the last delta: the EOS or stop token that ended the sequence, or None."""
    cached_tokens: int | None = None
    """Prompt tokens found in a prefix cache; with the first delta."""
    accepted_predicted: int = 0
    """Tokens of the client's prediction that were drafted and right."""
    rejected_predicted: int = 0
    """And those that were drafted and wrong."""


Deliver: TypeAlias = Callable[[Delta], bool]
"""Handles new tokens; returns whether the text ends within them, at a stop string."""


class TextEnded(Exception):
    """The reader found the end of the text."""


class TokenStream:
    """Create it with `deliver`, and pass it to `Dispatcher.generate`."""

    __slots__ = (
        "deliver",
        "delta",
        "due",
        "interrupt",
        "is_paused",
        "is_queued",
        "queue",
        "waiter",
        "weights",
    )

    def __init__(self, deliver: Deliver = lambda _delta: False) -> None:
        """An error of `deliver` ends the sequence."""
        self.delta = Delta()
        """Tokens that are not delivered yet; call `changed` after adding to it."""
        self.interrupt: Final = Interrupt()
        """Ends the computation: triggered with TextEnded, or with the error of `deliver`."""
        self.weights: list[tuple[int, str]] = [(0, "")]
        """Tags of the weights that compute the tokens, each with the position of the first of these."""
        self.queue: DeliveryQueue | None = None
        """Set by the dispatcher; without a queue nothing is delivered."""
        self.deliver: Final = deliver
        self.is_paused = False
        self.is_queued = False
        self.waiter: asyncio.Future[bool] | None = None
        """Future of `drained`, which waits for a slow reader until `due`."""
        self.due = math.inf

    def computed_with(self, tag: str, position: int) -> None:
        """Tokens from `position` on are computed with the weights of this tag."""
        self.weights = [span for span in self.weights if span[0] < position] + [(position, tag)]

    def pause(self) -> None:
        """The reader is slow: keep new tokens until `resume`."""
        self.is_paused = True
        if self.due < math.inf:
            self._give_up_if_due()

    def resume(self) -> None:
        self.is_paused = False
        if self._has_news:
            self.changed()

    def changed(self) -> None:
        """Deliver `delta` soon."""
        if not (self.is_queued or self.is_paused or self.queue is None):
            self.is_queued = True
            self.queue.add(self)

    async def drained(self, due: float = math.inf) -> bool:
        """Wait until all tokens are delivered; for a slow reader, at most until `due` on the loop's clock.

        Returns whether they are delivered.
        """
        if not self._has_news:
            return True
        loop = asyncio.get_running_loop()
        self.waiter, self.due = loop.create_future(), due
        if due == math.inf:
            return await self.waiter
        reminder = loop.call_at(due, self._give_up_if_due)
        try:
            return await self.waiter
        finally:
            reminder.cancel()

    def _give_up_if_due(self) -> None:
        is_due = asyncio.get_running_loop().time() >= self.due
        if is_due and self.is_paused and self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(False)

    def close(self) -> None:
        """Deliver nothing more."""
        self.queue = None

    def end(self, why: Exception) -> None:
        """Deliver nothing more, and end the computation."""
        self.close()
        self.interrupt.trigger(why)

    @property
    def _has_news(self) -> bool:
        return bool(self.delta.token_ids or self.delta.finish)


class DeliveryQueue:
    """Streams with new tokens, in the order in which the first of these arrived."""

    def __init__(self, on_sent: Callable[[int], None] = lambda _tokens: None) -> None:
        """`on_sent(tokens)` is called after every turn with the number of delivered tokens."""
        self._on_sent: Final = on_sent
        self._streams: Final[deque[TokenStream]] = deque()

    def add(self, stream: TokenStream) -> None:
        if not self._streams:
            asyncio.get_running_loop().call_soon(self._turn)
        self._streams.append(stream)

    def _turn(self) -> None:
        streams, tokens = self._streams, 0
        for _ in range(min(len(streams), _PER_TURN)):
            stream = streams[0]
            stream.is_queued = False
            if stream.queue is self and not stream.is_paused:
                delta, stream.delta = stream.delta, Delta()
                tokens += len(delta.token_ids)
                try:
                    if stream.deliver(delta):
                        stream.end(TextEnded())
                    elif stream.waiter is not None and not stream.waiter.done():
                        stream.waiter.set_result(True)
                except Exception as error:
                    stream.end(error)
            streams.popleft()  # only now: `add` schedules a turn when the queue is empty
        if streams:
            asyncio.get_running_loop().call_soon(self._turn)
        if tokens:
            self._on_sent(tokens)
