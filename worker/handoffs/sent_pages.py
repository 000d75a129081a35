"""Pages that a sender reads, and what the router is told of their way."""

from __future__ import annotations

from engine.core.request import Request
from kv_transfer import PushSpan
from rpc.baton.v1 import worker_pb2

__all__ = ["pages_of", "push_span"]


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
