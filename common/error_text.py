"""Shortens the messages of other libraries' errors to one line."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """The first line of the error's message; its type if there is none."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
