"""How a worker takes part in its engine's steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.core.request import Request


class Hooks(Protocol):
    """Callbacks of a worker. All are called on the engine's thread."""

    def on_started(self, requests: Sequence[Request]) -> None:
        """Their first chunks are about to be computed; work done here overlaps with that."""

    def on_computed(self, request: Request, upto: int) -> None:
        """The KV of tokens [0, upto) is in the pool."""

    def on_finished(self, request: Request) -> bool:
        """The request has ended. True: its pages stay as they are until `Engine.release`."""


class _NoHooks:
    def on_started(self, requests: Sequence[Request]) -> None:
        pass

    def on_computed(self, request: Request, upto: int) -> None:
        pass

    def on_finished(self, request: Request) -> bool:
        return False


NO_HOOKS: Hooks = _NoHooks()
