"""Identity of a request: its id and trace, in the router's and the workers' logs."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Final

__all__ = ["CURRENT_REQUEST", "RequestIdentity", "TraceContext"]

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_SAMPLED: Final = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """W3C Trace Context: the trace that a request belongs to, and the caller's span."""

    trace_id: str
    """32 hexadecimal digits."""
    parent_id: str = ""
    """16 hexadecimal digits; empty: the trace begins here."""
    sampled: bool = True

    @classmethod
    def of(cls, traceparent: str | None) -> TraceContext:
        """The caller's trace; a new one if there is none, or it is invalid."""
        found = _TRACEPARENT.fullmatch((traceparent or "").strip())
        if found is None:
            return cls(secrets.token_hex(16))
        version, trace_id, parent_id, flags, more = found.groups()
        is_valid = (
            version != "ff" and not (version == "00" and more) and int(trace_id, 16) and int(parent_id, 16)
        )
        if not is_valid:
            return cls(secrets.token_hex(16))
        return cls(trace_id, parent_id, bool(int(flags, 16) & _SAMPLED))

    def traceparent(self, span_id: str) -> str:
        """The header for calls within the span `span_id`."""
        return f"00-{self.trace_id}-{span_id}-{'01' if self.sampled else '00'}"


@dataclass(slots=True, eq=False)
class RequestIdentity:
    """One request of a client, which may ask for several sequences."""

    id: str = ""
    """Empty for internal requests, whose sequences get random ids."""
    trace: TraceContext = field(default_factory=lambda: TraceContext.of(None))
    operation: str = "text_completion"
    """gen_ai.operation.name of the GenAI semantic conventions."""
    _count: count[int] = field(default_factory=count, repr=False)

    def next_sequence(self) -> tuple[int, str]:
        """Index and id of the next sequence: the request's own id, then with suffixes -1, -2, …"""
        index = next(self._count)
        if not self.id:
            return index, secrets.token_hex(8)
        return index, f"{self.id}-{index}" if index else self.id


CURRENT_REQUEST: Final[ContextVar[RequestIdentity | None]] = ContextVar("request", default=None)
"""Set by the frontend for each call."""
