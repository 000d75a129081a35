"""A step on a device: enqueued in parts, and read back."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias

import numpy as np
import torch

from engine.core.output import Output
from engine.core.plan import StepPlan
from engine.core.sampling_params import TokenLogprobs
from engine.device.staging import Readback
from engine.errors import EngineError, NotFinite
from engine.executor.base import StepResult
from engine.media.step_media import NO_MEDIA, StepMedia
from engine.sampling.logprobs import LogprobTensors
from engine.sampling.scoring import Scored


class Pause(Enum):
    BUSY = auto()
    """Enough is enqueued for the host to do other work meanwhile."""
    OUTPUT = auto()
    """The next part depends on the tokens of the previous step, which must be in `Request.output`."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A step of which everything is enqueued."""

    readback: Readback
    errors: dict[int, EngineError] = field(default_factory=dict)
    """Known before the step has run; see `StepResult.errors`."""
    is_routed: bool = False
    """Whether the first tensor has the experts of each row."""


EnqueuingStep: TypeAlias = Generator[Pause, None, Enqueued]


class DeviceStep:
    """Implements `StepInFlight`, which has the contract of its methods."""

    def __init__(
        self,
        enqueuing: EnqueuingStep,
        plan: StepPlan,
        scored: Scored,
        media: StepMedia = NO_MEDIA,
    ) -> None:
        """Enqueues the first part."""
        self._media = media
        self._enqueuing = enqueuing
        self._plan = plan
        self._scored = scored
        self._enqueued: Enqueued | None = None
        self._pause = Pause.BUSY
        self.proceed()

    def proceed(self) -> bool:
        if self._enqueued is not None:
            return False
        try:
            self._pause = next(self._enqueuing)
        except StopIteration as end:
            self._enqueued = end.value
        return True

    def proceed_early(self) -> bool:
        return self._pause is Pause.BUSY and self.proceed()

    def done(self) -> bool:
        return self._enqueued is not None and self._enqueued.readback.done()

    def wait(self) -> None:
        assert self._enqueued is not None
        self._enqueued.readback.wait()

    def result(self) -> StepResult:
        while self.proceed():
            pass
        assert self._enqueued is not None
        read = self._enqueued.readback.wait()  # also when nothing is sampled: the KV must be in the pool
        routed = None
        if self._enqueued.is_routed:
            choices, *read = read
            routed = choices.numpy().view(np.uint8 if choices.dtype == torch.uint8 else np.uint16)
        scores: list[Output | None] = []
        if self._scored:
            scores, read = self._scored.split(read)
        if not self._plan.sampling():
            return StepResult(
                [], [], scores=scores, routed=routed, refused=self._media.errors, media=self._media.use()
            )
        tokens, finite, *logprobs = read
        good = finite.tolist()
        broken: dict[int, EngineError] = (
            {} if all(good) else {index: NotFinite() for index, is_good in enumerate(good) if not is_good}
        )
        return StepResult(
            tokens=tokens.tolist(),
            logprobs=self._logprobs(logprobs),
            errors=self._enqueued.errors | broken,
            scores=scores,
            refused=self._media.errors,
            media=self._media.use(),
            routed=routed,
        )

    def _logprobs(self, tensors: list[torch.Tensor]) -> list[TokenLogprobs | None]:
        sampling = self._plan.sampling()
        if not tensors:
            return [None] * len(sampling)
        each = [chunk.request.sampling for chunk in sampling]
        wanted = [params for params in each if params.logprobs is not None]
        measured = iter(LogprobTensors(*tensors).to_tokens(wanted))
        return [None if params.logprobs is None else next(measured) for params in each]
