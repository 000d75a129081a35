"""What a client may read of a failure. The server's inside goes to the log, under the request's id."""

from __future__ import annotations

import logging

from router.errors import Internal, RouterError

__all__ = ["as_router_error", "disclosed"]

_log = logging.getLogger(__name__)


def as_router_error(error: Exception) -> RouterError:
    """`error` itself, or Internal: an error that is not ours is a bug."""
    if isinstance(error, RouterError):
        return error
    internal = Internal(f"{type(error).__name__}: {error}")
    internal.__cause__ = error
    return internal


def disclosed(error: RouterError, request_id: str) -> str:
    """The sentence for the client. What it withholds (worker ids, addresses, exceptions) is logged."""
    sentence = error.public_message
    if sentence is None:
        return error.message
    if isinstance(error, Internal):
        _log.error("request %r failed: %s", request_id, error.message, exc_info=error.__cause__)
    else:
        _log.warning("request %r failed: %s", request_id, error.message)
    return f"{sentence} Request id: {request_id}."
