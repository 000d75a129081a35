"""What a placement policy is asked, and what it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from router.placement.sources import KVSource
from router.placement.view import ClusterView, RequestView, WorkerId, WorkerView


class NoWorker(Exception):
    """No worker is ready."""


class QuarantinedPages(Exception):
    """No ready worker can hold the request before pages in quarantine are free again."""


@dataclass(frozen=True, slots=True)
class ConsideredPair:
    """A pair of workers that was considered, with its predictions."""

    prefill_worker: WorkerId
    decode_worker: WorkerId
    ttft_s: float
    tpot_s: float
    expected_misses: float
    """Expected number of requests that miss a target because of this choice, this request included."""
    cost: float
    """The cost that the policy minimizes: `expected_misses`, plus a small cost of delays."""
    source: KVSource | None = None
    """Whose cached KV the prefill worker gets first; None: it gets none."""


@dataclass(frozen=True, slots=True)
class Why:
    """The reason for a placement, for users and logs."""

    policy: str
    candidates: tuple[ConsideredPair, ...] = ()
    """Candidates with predictions, best first; none if the policy makes no predictions."""
    exception: str = ""
    """Why the request does not run on the best candidate."""

    def __str__(self) -> str:
        """One line: the policy, the prediction of the best candidate, and the runner-up."""
        if not self.candidates:
            return self.policy + self._suffix
        best, *others = self.candidates
        text = (
            f"{self.policy}: TTFT {best.ttft_s * 1e3:.0f} ms, TPOT {best.tpot_s * 1e3:.1f} ms,"
            f" {best.expected_misses:.3f} misses expected"
        )
        if others:
            source, target = _name(others[0].prefill_worker), _name(others[0].decode_worker)
            text += f"; next best {source} to {target} with {others[0].expected_misses:.3f}"
        return text + self._suffix

    @property
    def _suffix(self) -> str:
        return f"; {self.exception}" if self.exception else ""


@dataclass(frozen=True, slots=True)
class Placement:
    """`prefill_worker` computes the prompt and the first token, `decode_worker` all other tokens."""

    prefill_worker: WorkerId
    decode_worker: WorkerId
    why: Why
    source: KVSource | None = None
    """Whose cached KV the prefill worker gets first; None: it gets none."""

    @property
    def is_local(self) -> bool:
        """Whether no KV has to move."""
        return self.prefill_worker == self.decode_worker


class HandoffRule(Enum):
    """Between which workers a policy lets KV move."""

    NEVER = auto()
    ONE_WAY = auto()
    """From workers that prefer prefill to those that prefer decode."""
    ANY_WAY = auto()
    """From any worker to any other."""


class PlacementPolicy(ABC):
    """Chooses the workers of every request; one for each `--mode`."""

    handoffs: HandoffRule
    predicts = False
    """Whether it uses the step times, link rates and demand in its view."""

    @abstractmethod
    def place(self, request: RequestView, view: ClusterView) -> Placement | None:
        """The workers for a request; None if it should wait until one has room. O(workers).

        Raises NoWorker, QuarantinedPages.
        """

    def encodes_elsewhere(self, request: RequestView, seconds: float, view: ClusterView) -> bool:
        """Whether an encode worker, which has the rows of the images in `seconds`, is to encode them."""
        return True

    def decode_worker(self, placement: Placement, request: RequestView, view: ClusterView) -> WorkerId:
        """The worker to which the KV of a placed request is sent, when its prompt starts. Raises NoWorker."""
        return placement.decode_worker

    def prefill_workers(self, workers: Sequence[WorkerView]) -> Sequence[WorkerView]:
        """Select the workers that compute prompts."""
        return workers

    def decode_workers(self, workers: Sequence[WorkerView]) -> Sequence[WorkerView]:
        """Select the workers that decode answers."""
        return workers


def _name(key: WorkerId) -> str:
    """Name of a worker, without the number of its session."""
    return key.partition("@")[0]
