"""What both halves of a handoff must agree on."""

from __future__ import annotations

from engine.core.request import Request
from kv_transfer import request_digest
from rpc.baton.v1 import sampling_pb2

__all__ = ["digest_of"]


def digest_of(request: Request, num_tokens: int, sampling: sampling_pb2.SamplingParams) -> int:
    """Digest of a request as the router described it: its first `num_tokens` tokens and its sampling.

    Prefill and decode worker compute it from their own copies; if the two differ, one of them would go on
    with another request than the other began. O(num_tokens).
    """
    return request_digest(request.tokens(0, num_tokens), (sampling.SerializeToString(deterministic=True),))
