"""What a tier's copies are told, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from common.block_hash import BlockHash
from common.block_key import PageKey
from engine.kv.tiers.stats import Tier

FOUND: Final = 0
"""Id of a `Done` that no job has asked for."""


class StoreLate(OSError):
    """A store of files did not answer in time: nothing is known of the page."""


@dataclass(frozen=True, slots=True)
class Demote:
    """Digest pool pages, and copy them to host slots."""

    id: int
    pages: tuple[int, ...]
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Promote:
    """Copy host slots to pool pages, and digest those."""

    id: int
    slots: tuple[int, ...]
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Save:
    """Write a host slot to a file."""

    id: int
    key: PageKey
    hash: BlockHash
    digest: int
    slot: int


@dataclass(frozen=True, slots=True)
class Load:
    """Read a file into a host slot."""

    id: int
    key: PageKey
    hash: BlockHash
    slot: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a file, after the writes that were ordered before. Has no answer."""

    key: PageKey
    hash: BlockHash


@dataclass(frozen=True, slots=True)
class Forget:
    """A file that another rank could not read in time: let `FOUND` name it again. Has no answer."""

    key: PageKey
    hash: BlockHash


Job: TypeAlias = Demote | Promote | Save | Load | Remove | Forget


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a job."""

    id: int
    digests: tuple[int | None, ...]
    """For each page: its digest where the KV was read (Demote, Save), as it arrived (Promote), or as the
    file states it (Load). None: there is no copy of it."""
    late: bool = False
    """The digest is None because the store did not answer in time."""
    found: tuple[tuple[PageKey, BlockHash], ...] = ()
    """Files that others have written, with the id FOUND."""


@dataclass(slots=True)
class EndedJobs:
    """What ended jobs mean for the pool."""

    freed: list[int] = field(default_factory=list)
    """Pages that were LEAVING."""
    promotions: list[tuple[int, list[Tier]]] = field(default_factory=list)
    """Ids, and where the pages came from that are verified, from the first on."""


class Copier(Protocol):
    """Does jobs in the background. One thread calls both methods."""

    def submit(self, job: Job) -> None:
        """Queue a job; never blocks."""

    def poll(self) -> list[Done]:
        """Jobs that have ended since the last call."""
