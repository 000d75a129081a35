"""Messages between rank 0 and the other ranks of a worker about copies of KV."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from engine.kv.tiers.jobs import Demote, Done, Forget, Load, Promote, Remove, Save
from kv_transfer.message_socket import MessageSocket


@dataclass(frozen=True, slots=True)
class File:
    """A page in a rank's files."""

    key: bytes
    hash: int


@dataclass(frozen=True, slots=True)
class Opened:
    """Rank, first of all: it is ready, unless there is a problem."""

    problem: str
    found: tuple[File, ...]


@dataclass(frozen=True, slots=True)
class DoneAnswer:
    """Rank: `Done`."""

    id: int
    digests: tuple[int, ...]
    lacking: tuple[int, ...]
    """Places in `digests` whose page has no copy."""
    late: int
    found: tuple[File, ...]

    @classmethod
    def of(cls, done: Done) -> DoneAnswer:
        lacking = tuple(place for place, digest in enumerate(done.digests) if digest is None)
        digests = tuple(digest or 0 for digest in done.digests)
        return cls(done.id, digests, lacking, int(done.late), tuple(File(*file) for file in done.found))

    def done(self) -> Done:
        digests: list[int | None] = list(self.digests)
        for place in self.lacking:
            digests[place] = None
        found = tuple((file.key, file.hash) for file in self.found)
        return Done(self.id, tuple(digests), bool(self.late), found)


@dataclass(frozen=True, slots=True)
class StopRank:
    """From rank 0: write the files that are queued, and close."""


Message: TypeAlias = Opened | DoneAnswer | StopRank | Demote | Promote | Save | Load | Remove | Forget
KINDS: Final[tuple[type[Message], ...]] = (
    Opened,
    DoneAnswer,
    StopRank,
    Demote,
    Promote,
    Save,
    Load,
    Remove,
    Forget,
)
RankSocket: TypeAlias = MessageSocket[Message]
