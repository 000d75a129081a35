"""Names of the weights that a model computes with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class WeightsIdentity:
    """KV that was computed with one may be continued only with an equal one."""

    checkpoint: str
    """Digest of all tensors."""
    version: str = ""
    """Name given by the caller of a refill; empty for the weights of the start."""

    def __str__(self) -> str:
        return f"{self.checkpoint}/{self.version}" if self.version else self.checkpoint


@dataclass(frozen=True, slots=True)
class NewWeights:
    """What a refill replaces the weights with."""

    checkpoint: Path
    """A Hugging Face folder, on the machines of all ranks."""
    version: str = ""
    """See `WeightsIdentity`."""
