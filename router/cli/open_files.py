"""Raises the limit of open files: every connection is one, and the usual limit is 1024."""

from __future__ import annotations

import resource

__all__ = ["allow_many_connections"]


def allow_many_connections() -> None:
    """Raise the soft limit of open files to the hard limit, which needs no privilege."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
