"""What all routers of a model know of its weights and its pauses, and how they share it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from router.dispatch.admission.pause_gate import PauseMode
from router.errors import InvalidRequest
from rpc.baton.v1 import worker_pb2

_FIELDS = ("tag", "folder", "version", "digest")


@dataclass(frozen=True, slots=True)
class WeightsState:
    """Each change has the next revision."""

    revision: int = 0
    served: worker_pb2.ServedWeights = field(default_factory=worker_pb2.ServedWeights)
    """Weights of all workers, but for those of an update that goes on; without a digest before the first
    update."""
    coming: worker_pb2.ServedWeights | None = None
    """New weights of an update that goes on. With a digest once a worker has them."""
    tags: tuple[str, ...] = ("",)
    """Weights that requests are computed with, the first ones by preference."""
    pause: PauseMode | None = None
    own_pause: bool = False
    """Whether the pause is that of the update, and ends with it."""
    by: str = ""
    """Router that makes an update; "": none does."""

    @property
    def is_rolling(self) -> bool:
        """Whether an update goes on, one worker after another."""
        return self.coming is not None and self.coming.tag in self.tags

    @property
    def wanted(self) -> worker_pb2.ServedWeights:
        """Weights for a worker that has none of those of `tags`."""
        coming = self.coming
        return coming if coming is not None and coming.digest and self.tags[0] == coming.tag else self.served

    def next(self, **changes: Any) -> WeightsState:
        return replace(self, revision=self.revision + 1, **changes)

    def ended(self, served: worker_pb2.ServedWeights) -> WeightsState:
        """No update goes on, and all workers that get requests have these weights."""
        pause = None if self.own_pause else self.pause
        return self.next(served=served, coming=None, tags=(served.tag,), pause=pause, own_pause=False, by="")

    def check_free(self, router: str) -> None:
        """Raises InvalidRequest while another router updates the weights."""
        if self.by not in ("", router):
            raise InvalidRequest(f"The weights are being updated by {self.by}.", code="busy")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a router tells the others."""

    revision: int
    """Revision of the state that it goes by: a pause is complete."""


class Alone:
    """Implements `router.dispatch.agreement.Shared` for one router, without others."""

    async def read(self, since: WeightsState) -> WeightsState:
        return since

    async def write(self, state: WeightsState) -> bool:
        return True

    async def views(self) -> Mapping[str, Seen]:
        return {}

    async def keep_view(self, router: str, view: Seen) -> None:
        pass

    async def forget_view(self, router: str) -> None:
        pass


def copied(served: worker_pb2.ServedWeights) -> worker_pb2.ServedWeights:
    copy = worker_pb2.ServedWeights()
    copy.CopyFrom(served)
    return copy


def state_to_json(state: WeightsState) -> bytes:
    coming = None if state.coming is None else _fields(state.coming)
    pause = None if state.pause is None else state.pause.value
    return json.dumps([_fields(state.served), coming, state.tags, pause, state.own_pause, state.by]).encode()


def state_from_json(revision: int, text: bytes) -> WeightsState:
    served, coming, tags, pause, own_pause, by = json.loads(text)
    return WeightsState(
        revision,
        worker_pb2.ServedWeights(**served),
        None if coming is None else worker_pb2.ServedWeights(**coming),
        tuple(tags),
        None if pause is None else PauseMode(pause),
        own_pause,
        by,
    )


def seen_to_json(seen: Seen) -> bytes:
    return json.dumps(seen.revision).encode()


def seen_from_json(text: bytes) -> Seen:
    return Seen(json.loads(text))


def _fields(served: worker_pb2.ServedWeights) -> Mapping[str, str]:
    return {name: getattr(served, name) for name in _FIELDS}
