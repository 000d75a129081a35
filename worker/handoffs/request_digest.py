"""What handoffs of every kind need: what both halves must agree on, and what is said about them."""

from __future__ import annotations

from engine.core.request import Request
from kv_transfer import PushSpan, request_digest
from rpc.baton.v1 import sampling_pb2, worker_pb2

__all__ = ["digest_of", "pages_of", "push_span"]


def digest_of(request: Request, num_tokens: int, sampling: sampling_pb2.SamplingParams) -> int:
    """Digest of a request as the router described it: its first `num_tokens` tokens and its sampling.

    Prefill and decode worker compute it from their own copies; if the two differ, one of them would go on
    with another request than the other began. O(num_tokens).
    """
    return request_digest(request.tokens(0, num_tokens), (sampling.SerializeToString(deterministic=True),))


def pages_of(request: Request, num_tokens: int, page_size: int) -> list[int]:
    """Those that hold computed tokens. Pages behind them may still be exchanged for cached ones."""
    return request.pages[: -(-num_tokens // page_size)]


def push_span(push: PushSpan, arrival: float) -> worker_pb2.Span:
    """A write, in seconds since the request's arrival."""
    return worker_pb2.Span(
        begin_s=push.begin - arrival,
        end_s=push.end - arrival,
        first_token=push.first_token,
        num_tokens=push.num_tokens,
        bytes=push.bytes,
    )
