"""What other routers have a worker compute."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rpc.baton.v1 import worker_pb2


@dataclass(frozen=True, slots=True)
class Others:
    """Sums over the other routers."""

    requests: int = 0
    tokens: int = 0
    """Uncached prompt tokens."""
    queued_tokens: int = 0
    """Uncached prompt tokens not computed yet."""
    decodes: int = 0
    context_tokens: int = 0
    """Context tokens of all decodes."""

    @property
    def incoming(self) -> int:
        """Requests whose prompts are not computed yet."""
        return self.requests - self.decodes

    @classmethod
    def of(cls, loads: Iterable[worker_pb2.RouterLoad], own: str) -> Others:
        """`own`: the name of this router."""
        others = [load for load in loads if load.router != own]
        return cls(
            requests=sum(load.requests for load in others),
            tokens=sum(load.tokens for load in others),
            queued_tokens=sum(load.queued_tokens for load in others),
            decodes=sum(load.decodes for load in others),
            context_tokens=sum(load.context_tokens for load in others),
        )


NOBODY: Final = Others()
