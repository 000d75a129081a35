"""Errors of the engine."""

from __future__ import annotations


class EngineError(Exception):
    """Base class of the engine's errors."""


class UnservableRequest(EngineError):
    """The engine can never serve this request; do not retry."""


class AdapterMissing(UnservableRequest):
    """The adapter of a request is not loaded: load it, or send the request to another worker."""


class AdapterRefused(EngineError):
    """An adapter cannot be loaded or unloaded; nothing has changed."""


class MediaMissing(EngineError):
    """Pixels of an image are needed and not here: send the request again, with them."""


class GrammarError(UnservableRequest):
    """The grammar of a request cannot be compiled, or followed any further with this vocabulary."""


class NotFinite(EngineError):
    """The model computed logits that are NaN or infinite: no token can be chosen."""

    def __init__(self, message: str = "the model computed logits that are not finite (NaN or infinity)"):
        super().__init__(message)


class QueueFull(EngineError):
    """Too many requests are waiting; retry later."""


class DeadlineUnreachable(QueueFull):
    """At the measured rate, the first token of the request would come after its deadline."""


class PageLeak(EngineError):
    """The accounts of the KV pool are inconsistent. This is a bug in Baton; KV may be corrupt."""


class RefillRefused(EngineError):
    """The engine has requests, or cannot take these weights; it goes on with those that it has."""


class EngineBusy(RefillRefused):
    """Requests, or pages that are in use or may still be written, are left."""


class WeightsIncomplete(EngineError):
    """A refill failed after it had begun to write: no tokens can be computed before another one succeeds."""


class RankLost(EngineError):
    """Another rank of the same model has ended or timed out, so this one cannot continue."""
