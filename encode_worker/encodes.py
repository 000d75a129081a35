"""Images that a worker encodes for others, on the engine thread: one between two steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from encode_worker.handouts import Encoded, Handouts
from engine.core.media import Encoding, MediaItem, MediaUse
from engine.core.request import RequestId
from engine.errors import EngineError
from engine.media.encoder import MediaEncoder

Report = Callable[[Encoding], None]
"""Tells the router that an image is encoded; of no duration if its rows were kept."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodeOrder:
    """An Encode of a router."""

    id: RequestId
    items: tuple[tuple[MediaItem, bytes], ...]
    """With their tickets."""
    deadline: float
    weights: str
    """See `Work.weights`."""
    refusal: Callable[[str], str | None]
    """Why the worker does not have these weights; None: it does."""
    report: Report
    fail: Callable[[str], None]
    """Tells the router why the rest is not encoded."""


class Encodes:
    """Its caller is the engine thread."""

    def __init__(self, encoder: Callable[[], MediaEncoder | None], clock: Callable[[], float]) -> None:
        """`encoder`: another one once the weights are replaced."""
        self.handouts = Handouts()
        self._encoder = encoder
        self._clock = clock
        self._orders: dict[RequestId, EncodeOrder] = {}
        """Orders whose rows may be fetched."""
        self._waiting: deque[tuple[EncodeOrder, MediaItem, bytes]] = deque()

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of images that wait. O(images)."""
        return sum(item.length for _, item, _ in self._waiting)

    @property
    def next_wakeup(self) -> float:
        """When `turn` has something to do; math.inf: never."""
        if self._waiting:
            return -math.inf
        return min((order.deadline for order in self._orders.values()), default=math.inf)

    def begin(self, order: EncodeOrder) -> None:
        self._orders[order.id] = order
        self.handouts.expect(ticket for _, ticket in order.items)
        self._waiting.extend((order, item, ticket) for item, ticket in order.items)

    def end(self, id: RequestId) -> bool:
        """Drop what is left of an order; False if there is none of that id."""
        order = self._orders.pop(id, None)
        if order is None:
            return False
        self.handouts.drop(ticket for _, ticket in order.items)
        self._waiting = deque(one for one in self._waiting if one[0] is not order)
        return True

    def turn(self, now: float) -> MediaUse | None:
        """Encode the next image; None: there is none."""
        for order in [order for order in self._orders.values() if order.deadline <= now]:
            self.end(order.id)
        if not self._waiting:
            return None
        order, item, ticket = self._waiting.popleft()
        encoder = self._encoder()
        if encoder is None or (reason := order.refusal(order.weights)) is not None:
            self._fail(order, "it encodes no images" if encoder is None else str(reason))
            return None
        begin = self._clock()
        try:
            rows, use = encoder.encode(item)
        except EngineError as error:
            self._fail(order, str(error))
            return None
        self.handouts.give(ticket, Encoded(item.digest, rows, order.weights))
        took = self._clock() - begin if use.encoded else 0.0
        order.report(Encoding(item, begin, took))
        return use

    def _fail(self, order: EncodeOrder, reason: str) -> None:
        """Refuse what is left of an order. It stays, since its fetches may come later."""
        for _, ticket in order.items:
            self.handouts.refuse(ticket, reason)
        self._waiting = deque(one for one in self._waiting if one[0] is not order)
        order.fail(reason)
