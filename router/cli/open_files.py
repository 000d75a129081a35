"""Every connection is an open file, and the usual limit of 1024 is meant for programs that have few."""

from __future__ import annotations

import resource

__all__ = ["allow_many_connections"]


def allow_many_connections() -> None:
    """Raises the process's limit of open files as far as the system lets it, which needs no privilege."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
