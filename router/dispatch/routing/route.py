"""The route of one attempt: its workers, and the policy that chose them."""

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
"""Returns the worker for the prompt (ROLE_PREFILL) or for decoding. Raises AttemptFailed."""


class Tracker(Protocol):
    """Callbacks about the progress of an attempt. All calls are O(1)."""

    def progress(self, num_computed: int) -> None:
        """Prompt tokens [0, num_computed) are computed; more are left."""

    def tokens(self, count: int) -> None:
        """`count` new tokens were received."""

    def arrived(self) -> None:
        """All KV has arrived at the decode worker."""

    def moved(self, session: WorkerSession) -> None:
        """The answer has moved to this worker."""

    def handed_off(self, num_bytes: int, seconds: float) -> None:
        """KV was transferred. `seconds`: time with a write in flight."""

    def ended(self) -> None:
        """The attempt has ended: finished, failed or aborted."""


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

    def handed_off(self, num_bytes: int, seconds: float) -> None:
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
    """The decision in one line, for logs and `router explain`."""
    claim: Claim | None = None
    """Room reserved on the decode worker until it is picked."""
    tracker: Tracker = NO_TRACKER
    may_wait: bool = True
    """Whether the handoff may wait for free pages on the decode worker. Where every worker can be source and
    target, two workers with full pools could deadlock: each holds KV until the other frees pages."""


class Placing(Protocol):
    """Chooses workers for sequences; one implementation for each `--mode`."""

    def is_ready(self) -> bool:
        """Whether there are ready workers that can compute a sequence."""

    def has_room(self, want: AdmissionRequest) -> bool:
        """Whether a sequence can be sent to workers now; see `Admission`.

        Raises Unavailable if waiting is useless: the pages that it needs are quarantined on every worker.
        """

    def claim(self, want: AdmissionRequest) -> Claim | None:
        """Reserve room for an admitted sequence; None if the route reserves it, or nothing is reserved."""

    def route(self, sequence: Sequence, avoid: Set[str]) -> Route | None:
        """Workers for the next attempt; None if none is ready. `avoid`: workers on which it failed."""

    def probe(self, pick: Pick) -> Route:
        """Route of a health probe of the workers that `pick` returns."""

    def move_target(self, tokens: int, leaving: str) -> WorkerSession | None:
        """Worker to which a running answer moves from `leaving`; None if no other has room for `tokens`."""

    def prefill_workers(self) -> list[WorkerSession]:
        """Ready workers that compute prompts."""

    def able(self, role: worker_pb2.Role) -> list[WorkerSession]:
        """Connected workers that a health probe may use for this role, also those that are not ready."""
