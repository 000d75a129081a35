"""The route of one attempt: its workers, and the policy that chose them."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from router.dispatch.admission.admission_queue import AdmissionRequest, Claim
from router.dispatch.sequence import Sequence
from router.workers.session import WorkerSession
from rpc.baton.v1 import worker_pb2

__all__ = ["OnTransfer", "Pick", "Route", "WorkerSelector"]

Pick: TypeAlias = Callable[[worker_pb2.Role], WorkerSession]
"""Returns the worker for the prompt (ROLE_PREFILL) or for decoding. Raises AttemptFailed."""


OnTransfer: TypeAlias = Callable[[int, float], None]
"""(bytes, seconds): KV was sent from the prefill to the decode worker; seconds with a write in flight."""


def _ignore(num_bytes: int, seconds: float) -> None:
    pass


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
    on_transfer: OnTransfer = _ignore
    may_wait: bool = True
    """Whether the handoff may wait for free pages on the decode worker. Where every worker can be source and
    target, two workers with full pools could deadlock: each holds KV until the other frees pages."""


class WorkerSelector(Protocol):
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

    def completed(self, output_tokens: int) -> None:
        """An answer ended by a stop or by its length, with this many tokens."""

    def probe(self, pick: Pick) -> Route:
        """Route of a health probe of the workers that `pick` returns."""

    def move_target(self, tokens: int, leaving: str) -> WorkerSession | None:
        """Worker to which a running answer moves from `leaving`; None if no other has room for `tokens`."""

    def prefill_workers(self) -> list[WorkerSession]:
        """Ready workers that compute prompts."""

    def able(self, role: worker_pb2.Role) -> list[WorkerSession]:
        """Connected workers that a health probe may use for this role, also those that are not ready."""
