"""Limits what clients learn about failures. Internal details are logged under the request's id."""

from __future__ import annotations

import logging

from router.errors import Internal, RouterError

_log = logging.getLogger(__name__)


def as_router_error(error: Exception) -> RouterError:
    """`error` itself if it is a RouterError; otherwise Internal, since any other error is a bug."""
    if isinstance(error, RouterError):
        return error
    internal = Internal(f"{type(error).__name__}: {error}")
    internal.__cause__ = error
    return internal


def disclosed(error: RouterError, request_id: str) -> str:
    """The message for the client. Internal details (worker ids, addresses, exceptions) are logged."""
    sentence = error.public_message
    if sentence is None:
        return error.message
    if isinstance(error, Internal):
        _log.error("request %r failed: %s", request_id, error.message, exc_info=error.__cause__)
    else:
        _log.warning("request %r failed: %s", request_id, error.message)
    return f"{sentence} Request id: {request_id}."
