"""What can go wrong in the engine, by who is at fault."""

from __future__ import annotations

__all__ = [
    "DeadlineUnreachable",
    "EngineError",
    "GrammarError",
    "InvalidRequest",
    "NotFinite",
    "PageLeak",
    "QueueFull",
    "RankLost",
]


class EngineError(Exception):
    """Base of all errors that an engine raises on purpose."""


class InvalidRequest(EngineError):
    """The request can never be served here; sending it again will not help."""


class GrammarError(InvalidRequest):
    """The grammar of a request cannot be compiled, or followed any further with this vocabulary."""


class NotFinite(EngineError):
    """The model computed logits that are NaN or infinite: no token can be chosen."""


class QueueFull(EngineError):
    """Too many requests wait already; sending it again later may help."""


class DeadlineUnreachable(QueueFull):
    """By the measured rate, the first token of the request would come after its deadline."""


class PageLeak(EngineError):
    """The accounts of the KV pool do not add up: a bug in Baton, and no page can be trusted any more."""


class RankLost(EngineError):
    """A process that computes a part of the same model is gone; without it there is no model."""
