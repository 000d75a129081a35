"""The experts of each token, as vLLM and SGLang write them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

from router.errors import Internal
from rpc.baton.v1 import worker_pb2

Experts = npt.NDArray[Any]
"""[tokens, layers, experts of a token] uint8 or uint16."""


def experts_of(outputs: Sequence[worker_pb2.Output], count: int, *, aborted: bool) -> Experts | None:
    """Rows of the first `count` tokens, or fewer of an answer that is `aborted`; None before the first one.

    Raises Internal if rows are missing.
    """
    parts = [output.routed_experts for output in outputs if output.HasField("routed_experts")]
    known = sum(part.count for part in parts)
    if known < count and not aborted:
        raise Internal(f"the experts of {known} tokens came from the workers, not of {count}")
    if not parts:
        return None
    first, rows = parts[0], b"".join([part.rows for part in parts])
    shape = known, first.layers, first.per_token
    narrow = len(rows) == known * first.layers * first.per_token
    return np.frombuffer(rows, np.uint8 if narrow else np.dtype("<u2")).reshape(shape)[:count]


def as_npy(experts: Experts) -> str:
    """Base64 of an .npy file, as vLLM has it."""
    file = BytesIO()
    np.save(file, np.ascontiguousarray(experts), allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode()


def as_int32(experts: Experts, start: int) -> str:
    """Base64 of int32 numbers without a shape, as SGLang has them; of tokens from `start` on."""
    return base64.b64encode(experts[start:].astype("<i4").tobytes()).decode()
