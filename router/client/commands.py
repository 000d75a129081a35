"""The commands that are clients of a running router."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from router.client import batch, chat, top

COMMANDS: Final[Mapping[str, Callable[[Sequence[str]], int]]] = {
    "batch": batch.run,
    "chat": chat.run,
    "top": top.run,
}
"""Each takes the arguments after its name, and returns the exit status."""
