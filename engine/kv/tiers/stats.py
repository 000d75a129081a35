"""What a worker's tiers hold and have done."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Tier(Enum):
    """Memory below the KV pool."""

    HOST = "host"
    DISK = "disk"
    OBJECT = "object"
    """A store that workers share."""


class Fault(Enum):
    """Why a copy was not made, or was not used."""

    DIGEST = "digest"
    """The KV that came up is not the KV that went down."""
    SAVE = "save"
    """A file could not be written."""
    LOAD = "load"
    """A file is missing, damaged, or of other weights or another layout."""
    LATE = "late"
    """The store of files did not answer in time."""


@dataclass(slots=True)
class TierCounts:
    """Since the start; pages of `page_size` tokens."""

    demoted: int = 0
    """From the pool to host memory."""
    saved: int = 0
    """From host memory to files."""
    loaded: int = 0
    """From files to host memory."""
    promoted: dict[Tier, int] = field(default_factory=lambda: dict.fromkeys(Tier, 0))
    """Into the pool, verified; by the tier that had them when they were asked for."""
    dropped: int = 0
    """Evicted from the pool before there was a copy."""
    faults: dict[Fault, int] = field(default_factory=lambda: dict.fromkeys(Fault, 0))


@dataclass(frozen=True, slots=True)
class TierStats:
    counts: TierCounts
    pages: dict[Tier, int]
    """Copies there are."""
    capacity: dict[Tier, int]
    page_bytes: int
