"""Decides which worker is updated next while the others serve. Pure: no clock, no network.

| phase | target | requests go to |
| --- | --- | --- |
| FORWARD | the new weights | workers with the new ones that have room, else with the old ones |
| BACK, after a refusal | the old weights | workers with the old ones that have room, else with the new ones |
| DONE, FAILED | | workers with the target's weights alone |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeAlias

Tag: TypeAlias = str
"""See `worker_pb2.ServedWeights`."""

_MAX_LOSSES: Final = 3
"""Losses of one worker during its update after which it counts as refused: the weights may end it."""


class Phase(Enum):
    FORWARD = auto()
    BACK = auto()
    DONE = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Updatable:
    """A connected worker."""

    id: str
    role: int
    tag: Tag
    computes: bool = True
    """False: it encodes images for the others."""


@dataclass(slots=True)
class Rolling:
    """One update, worker by worker. Call `next`, update that worker, and report what came of it."""

    old: Tag
    new: Tag
    phase: Phase = Phase.FORWARD
    digest: str = ""
    """Digest of the new weights, as the first worker has read them; empty: no worker has them."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why the update failed, by worker."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Workers that do not take the old weights back, with their reasons: they get no requests."""
    alone: list[str] = field(default_factory=list)
    """Workers that were updated while no other one was connected."""
    _losses: Counter[str] = field(default_factory=Counter)

    @property
    def target(self) -> Tag:
        return self.new if self.phase in (Phase.FORWARD, Phase.DONE) else self.old

    @property
    def versions(self) -> tuple[Tag, ...]:
        """Weights that requests are computed with; those that they are to have first."""
        match self.phase:
            case Phase.FORWARD:
                return self.new, self.old
            case Phase.BACK:
                return self.old, self.new
            case _:
                return (self.target,)

    def next(self, workers: Sequence[Updatable]) -> Updatable | None:
        """The worker to update to `target`; None: the update is DONE or FAILED.

        In the role that has most workers to update, and of one role then of the other, so that pairs with
        the target's weights form soon.
        """
        left = [w for w in workers if w.tag != self.target and w.id not in self.left_out]
        if not left:
            self._end()
            return None
        by_role = Counter(worker.role for worker in left)
        chosen = max(left, key=lambda worker: by_role[worker.role])
        others = [w for w in workers if w.id != chosen.id and w.computes and w.tag in self.versions]
        if chosen.computes and not others:
            self.alone.append(chosen.id)
        return chosen

    def updated(self, worker: str, digest: str) -> None:
        """A worker has the target's weights."""
        self._losses.pop(worker, None)
        if self.phase is Phase.FORWARD:
            self.digest = digest

    def refused(self, worker: str, reason: str) -> None:
        """A worker has kept its weights, or has incomplete ones."""
        if self.phase is Phase.FORWARD:
            self.reasons[worker] = reason
            self.phase = Phase.BACK
        else:
            self.left_out[worker] = reason

    def lost(self, worker: str) -> None:
        """A worker ended during its update: it is updated when it is back."""
        self._losses[worker] += 1
        if self._losses[worker] >= _MAX_LOSSES:
            self.refused(worker, f"it ended {_MAX_LOSSES} times as it was updated")

    def _end(self) -> None:
        if self.phase is Phase.FORWARD and not self.digest:
            self.reasons["all workers"] = "none is connected"
            self.phase = Phase.BACK
        self.phase = Phase.DONE if self.phase is Phase.FORWARD else Phase.FAILED
