"""Where one attempt at a sequence goes, and by what rule."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from router.dispatch.admission.admission_queue import AdmissionRequest, Claim
from router.dispatch.sequence import Sequence
from router.workers.session import WorkerSession
from rpc.baton.v1 import worker_pb2

__all__ = ["NO_TRACKER", "Pick", "Placing", "Route", "Tracker", "Untracked"]

Pick: TypeAlias = Callable[[worker_pb2.Role], WorkerSession]
"""Names the worker that computes the prompt (ROLE_PREFILL), or the one that decodes. Raises AttemptFailed."""


class Tracker(Protocol):
    """Told how far an attempt is. All calls are O(1)."""

    def progress(self, num_computed: int) -> None:
        """So many prompt tokens are computed, and not all."""

    def tokens(self, count: int) -> None:
        """New tokens came."""

    def arrived(self) -> None:
        """The KV is on the decode worker."""

    def moved(self, session: WorkerSession) -> None:
        """This worker decodes from now on."""

    def handed_over(self, num_bytes: int, seconds: float) -> None:
        """KV travelled: so many bytes, in so many seconds in which writes were under way."""

    def ended(self) -> None:
        """The attempt is over, in whatever way."""


class Untracked:
    """Implements `Tracker`: does nothing."""

    def progress(self, num_computed: int) -> None:
        pass

    def tokens(self, count: int) -> None:
        pass

    def arrived(self) -> None:
        pass

    def moved(self, session: WorkerSession) -> None:
        pass

    def handed_over(self, num_bytes: int, seconds: float) -> None:
        pass

    def ended(self) -> None:
        pass


NO_TRACKER: Tracker = Untracked()


@dataclass(frozen=True, slots=True)
class Route:
    """The workers of one attempt."""

    pick: Pick
    is_local: bool
    """One worker computes everything: `pick(ROLE_DECODE)`."""
    why: str
    """For people: what decided."""
    claim: Claim | None = None
    """Room on the decode worker, kept until it is picked."""
    split: int | None = None
    """Where KV moves: the prefill worker computes prompt tokens before this one, the decode worker those from
    it on, and the first token. None: the prefill worker does all of that."""
    tracker: Tracker = NO_TRACKER
    may_wait: bool = True
    """The prefill worker may keep the KV until the decode worker has pages for it. Where workers hand over to
    each other in every direction, two with full pools could wait for each other so."""


class Placing(Protocol):
    """Decides where sequences are computed: a mode of the cluster."""

    def is_ready(self) -> bool:
        """Whether there are workers for every part of a sequence."""

    def has_room(self, want: AdmissionRequest) -> bool:
        """Whether a sequence should leave the router now; see `Admission`."""

    def claim(self, want: AdmissionRequest) -> Claim | None:
        """Keeps room for a sequence that leaves the router; None where the route does that, or nobody."""

    def route(self, sequence: Sequence, avoid: Set[str]) -> Route | None:
        """The workers for the next attempt; None if one is missing. `avoid`: where it failed before."""

    def probe(self, pick: Pick) -> Route:
        """How the workers that `pick` names are put to the test."""

    def refuge(self, tokens: int, leaving: str) -> WorkerSession | None:
        """Where a running answer moves to from `leaving`; None: no other has room for so many tokens."""

    def prefill_workers(self) -> list[WorkerSession]:
        """Workers that compute prompts now."""

    def able(self, role: worker_pb2.Role) -> list[WorkerSession]:
        """Workers that could take this part of a sequence, also those that get no requests now."""
