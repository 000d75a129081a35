"""Logging of a worker's processes."""

from __future__ import annotations

import logging

from common.log_format import TEXT, formatter


def log_to_stderr(level: int, style: str = TEXT) -> None:
    """`style`: "text" or "json"."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(style))
    logging.basicConfig(level=level, handlers=[handler])
