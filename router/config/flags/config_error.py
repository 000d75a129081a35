"""What is wrong with a command line or a file of settings."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ConfigError"]


class ConfigError(Exception):
    """The command line or the file is invalid. Every message names the flag, its value and what to do."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)
