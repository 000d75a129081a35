"""Digest by which the two workers of a handoff check that they have the same request."""

from __future__ import annotations

from engine.core.request import Request
from kv_transfer import request_digest
from rpc.baton.v1 import sampling_pb2

__all__ = ["digest_of"]


def digest_of(request: Request, num_tokens: int, sampling: sampling_pb2.SamplingParams) -> int:
    """Digest of a request's first `num_tokens` tokens and its sampling parameters.

    Prefill and decode worker compute it from the commands they got; a mismatch fails the handoff.
    O(num_tokens).
    """
    return request_digest(request.tokens(0, num_tokens), (sampling.SerializeToString(deterministic=True),))
