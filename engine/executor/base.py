"""What an engine asks of the runner of its steps: a model on a device, or a formula in simulations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from common.sidecars import Rows, SidecarKind
from engine.core.adapters import AdapterBank
from engine.core.media import NO_MEDIA_USE, MediaUse
from engine.core.output import Output
from engine.core.plan import StepPlan
from engine.core.request import RequestId
from engine.core.sampling_params import TokenLogprobs
from engine.core.weights import NewWeights, WeightsIdentity
from engine.errors import EngineError
from engine.model_config.served_model import ServableSpec


@dataclass(frozen=True, slots=True)
class StepResult:
    """`tokens` and `logprobs` have an entry for each row of the plan that samples, in its order."""

    tokens: list[int]
    logprobs: list[TokenLogprobs | None]
    errors: dict[int, EngineError] = field(default_factory=dict)
    """Errors by index among these rows; the token of such an entry is undefined, but in range."""
    scores: list[Output | None] = field(default_factory=list)
    """For each chunk with scored rows, in the plan's order; None: its logits were not finite."""
    refused: Mapping[RequestId, EngineError] = field(default_factory=dict)
    """Requests that lacked something of their own: what the step computed for them is wrong."""

    media: MediaUse = NO_MEDIA_USE
    routed: Rows | None = None
    """For each row of the plan, in its order, the experts of its token in every layer; None: not recorded."""

    def accepted(self, draft: Sequence[int], first: int) -> int:
        """How many tokens of a draft are what was sampled, without an error, from row `first` on."""
        tokens, errors = self.tokens, self.errors
        for row, token in enumerate(draft, first):
            if tokens[row] != token or (errors and row in errors):
                return row - first
        return len(draft)


class StepInFlight(Protocol):
    """A step that is enqueued, at least in part, and may still be running."""

    def proceed(self) -> bool:
        """Enqueue the next part; False if there is none. All parts are enqueued before the next step is.

        The tokens of the previous step must be in `Request.output`; before that, call `proceed_early`.
        """

    def proceed_early(self) -> bool:
        """`proceed` unless the next part depends on tokens of the previous step; then False."""

    def done(self) -> bool:
        """Whether the step has completed, so that `result` does not block."""

    def wait(self) -> None:
        """Wait until the device has done a step that is enqueued as a whole. From any thread."""

    def result(self) -> StepResult:
        """Enqueue the rest, wait for the step, and return what it sampled."""


PreparedT = TypeVar("PreparedT")


class Runner(Protocol[PreparedT]):
    @property
    def spec(self) -> ServableSpec: ...

    @property
    def num_pages(self) -> int:
        """Number of pages in the KV pool."""

    @property
    def sidecars(self) -> Sequence[SidecarKind]:
        """What pages own besides KV."""

    @property
    def num_state_slots(self) -> int:
        """0 for models without a recurrent state."""

    def pages_of_slot(self, slot: int) -> Sequence[int]:
        """The memory of a slot for a recurrent state, counted in pages."""

    @property
    def weights(self) -> WeightsIdentity:
        """Identity of the weights. The first call may read all of them."""

    @property
    def adapters(self) -> AdapterBank | None:
        """None: the model takes no adapters."""

    def refill(self, new: NewWeights) -> None:
        """Overwrite the weights in place, while no step is in flight.

        Raises RefillRefused if nothing was written, WeightsIncomplete if a part was.
        """

    def prepare(self, plan: StepPlan) -> PreparedT:
        """Copy a step's inputs. A step must be launched before the next is prepared."""

    def launch(self, step: PreparedT) -> StepInFlight:
        """Enqueue the first part of a step; `StepInFlight.proceed` enqueues the rest. Never blocks."""

    def close(self) -> None:
        """Free the device's memory. The runner cannot be used afterwards."""
