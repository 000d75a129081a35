"""Interface between the frontends and the dispatcher: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from router.dispatch.standing import Standing
from rpc.baton.v1 import router_pb2, sampling_pb2

__all__ = ["Delta", "Dispatcher", "OnCut", "ignore_cut"]


@dataclass(slots=True)
class Delta:
    """New tokens of a sequence. Several steps may be merged into one delta."""

    token_ids: list[int] = field(default_factory=list)
    """Includes the stop token, which counts as generated but is not part of the text."""
    logprobs: list[sampling_pb2.TokenLogprobs] = field(default_factory=list)
    """One per token, or none."""
    finish: int = sampling_pb2.FINISH_REASON_UNSPECIFIED
    """A sampling_pb2.FinishReason; unspecified (0) until the last delta."""
    stop_token: int | None = None
    """With the last delta: the EOS or stop token that ended the sequence, or None."""
    cached_tokens: int | None = None
    """Prompt tokens found in a prefix cache; with the first delta."""
    timings: router_pb2.Timings | None = None
    """With the last delta."""


OnCut: TypeAlias = Callable[[Standing, router_pb2.Timings], None]
"""Called with the stage and the timings of a sequence that ended before its last delta."""


def ignore_cut(standing: Standing, timings: router_pb2.Timings) -> None:
    """Does nothing."""


class Dispatcher(Protocol):
    """Runs one sequence on the cluster, in any mode."""

    def generate(
        self,
        prompt: Sequence[int],
        sampling: sampling_pb2.SamplingParams,
        *,
        priority: int = 0,
        tenant: str = "",
        ttft_deadline_s: float = 0.0,
        timeout_s: float = 0.0,
        on_cut: OnCut = ignore_cut,
    ) -> AsyncGenerator[Delta, bool | None]:
        """Yield new tokens until a delta with a finish reason.

        A caller that detects the end of the text itself, at a stop string, calls `asend(True)`. The sequence
        then counts as stopped, not as aborted, and the result is a delta without tokens: finish reason STOP,
        and the timings. Closing or cancelling the generator aborts the request on all its workers.
        `timeout_s` and `ttft_deadline_s`, for the first token, count from the call; 0 means no deadline. With
        fair queues, requests of one `tenant` share its turn. `on_cut` is called if an admitted sequence ends
        by an error, a deadline, or its caller. Raises RouterError.
        """
        ...

    def ready(self) -> bool:
        """Whether there are ready workers for a request."""
        ...
