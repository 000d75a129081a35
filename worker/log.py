"""How the processes of a worker log."""

from __future__ import annotations

import logging

__all__ = ["log_to_stderr"]


def log_to_stderr(level: int) -> None:
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
