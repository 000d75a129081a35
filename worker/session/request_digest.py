"""Digest with which the two workers of a handoff verify that they have the same request."""

from __future__ import annotations

from engine.core.request import Request
from kv_transfer import request_digest
from rpc.baton.v1 import sampling_pb2


def digest_of(request: Request, num_tokens: int, sampling: sampling_pb2.SamplingParams) -> int:
    """Digest of a request's first `num_tokens` tokens and its sampling parameters.

    Both workers compute it from their commands; a mismatch fails the handoff. O(num_tokens).
    """
    return request_digest(request.tokens(0, num_tokens), (sampling.SerializeToString(deterministic=True),))
