"""Results of an update of the weights: what was done, or why it failed."""

from __future__ import annotations

from typing import NamedTuple

from router.config.choices import UpdateMode
from router.dispatch.weights.rolling import Rolling
from router.errors import Unavailable
from rpc.baton.v1 import worker_pb2


class UpdateFailed(Unavailable):
    """Not every worker has taken the weights; the message says which, and why. The old ones go on serving."""

    default_code = "update_failed"


class UpdateDone(NamedTuple):
    served: worker_pb2.ServedWeights
    how: UpdateMode
    paused: bool
    """Whether requests waited meanwhile."""


def why_failed(rolling: Rolling) -> str:
    """What became of an update that has failed."""
    why = "; ".join(f"{worker}: {reason}" for worker, reason in rolling.reasons.items())
    left_out = "; ".join(f"{worker}: {reason}" for worker, reason in rolling.left_out.items())
    suffix = f" Without requests until they take the old ones back: {left_out}." if left_out else ""
    return f"The weights are not updated: {why}.{suffix}"
