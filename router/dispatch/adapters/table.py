"""Adapters of one model as a router sees them: names that requests may use, and contents that are in use.

A name stands for one content at a time; a content is known by the digest of all its bytes, and keeps it when
the name goes on to another one. Pure: no clock, no network.

| life of a content | |
| --- | --- |
| STAGED | on the workers; no request may name it |
| VISIBLE | requests that name it are admitted |
| UNLOADING | its name is gone, or has another content; requests that were admitted with it go on |
| GONE | not known to this router |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeAlias

Digest: TypeAlias = bytes
"""Hash of an adapter's whole content."""

NO_ADAPTER: Final[Digest] = b""


@dataclass(frozen=True, slots=True)
class Adapter:
    name: str
    path: str
    """Folder, as workers see it."""
    digest: Digest
    rank: int = 0
    created: int = 0
    """Unix time in seconds at which it became visible."""
    invocation: tuple[int, ...] = ()
    """Tokens that activate it; empty: it is used from the first token on."""


class Life(Enum):
    STAGED = auto()
    VISIBLE = auto()
    UNLOADING = auto()
    GONE = auto()


Names: TypeAlias = Mapping[str, Adapter]
"""The adapters that requests may use, by name."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What all routers of a model agree on. Each change has the next revision."""

    revision: int = 0
    adapters: Names = field(default_factory=dict)

    def with_adapter(self, adapter: Adapter) -> Catalogue:
        return Catalogue(self.revision + 1, {**self.adapters, adapter.name: adapter})

    def without(self, name: str) -> Catalogue:
        others = {known: adapter for known, adapter in self.adapters.items() if known != name}
        return Catalogue(self.revision + 1, others)

    @property
    def digests(self) -> frozenset[Digest]:
        return frozenset(adapter.digest for adapter in self.adapters.values())


@dataclass(frozen=True, slots=True)
class RouterView:
    """What a router tells the others."""

    revision: int
    """Revision of the catalogue by which it admits requests."""
    using: frozenset[Digest]
    """Contents outside of the catalogue that its requests use, or that it is staging."""


class Use:
    """A request's claim on an adapter, from its admission to its end."""

    __slots__ = ("_table", "adapter")

    def __init__(self, table: AdapterTable, adapter: Adapter) -> None:
        self.adapter = adapter
        self._table: AdapterTable | None = table

    def end(self) -> None:
        """Idempotent."""
        table, self._table = self._table, None
        if table is not None:
            table.release(self.adapter.digest)


class AdapterTable:
    """One router's adapters of one model."""

    def __init__(self) -> None:
        self.catalogue = Catalogue()
        self._uses: Counter[Digest] = Counter()
        self._known: set[Digest] = set()
        """Contents that workers may hold, and that this router is to have unloaded once unused."""
        self._shown: set[Digest] = set()
        """Known contents that have been visible."""

    @property
    def known(self) -> Set[Digest]:
        """Contents that are not GONE."""
        return self._known

    def is_used(self, digest: Digest) -> bool:
        return digest in self._uses

    def find(self, name: str) -> Adapter | None:
        return self.catalogue.adapters.get(name)

    def life(self, digest: Digest) -> Life:
        if digest in self.catalogue.digests:
            return Life.VISIBLE
        if digest not in self._known:
            return Life.GONE
        return Life.UNLOADING if digest in self._shown else Life.STAGED

    def use(self, name: str) -> Use | None:
        """Admit a request with the adapter that the name stands for now; None: there is none."""
        adapter = self.find(name)
        if adapter is None:
            return None
        self.claim(adapter.digest)
        return Use(self, adapter)

    def claim(self, digest: Digest) -> None:
        """Keep a content on the workers until `release`: a request uses it, or it is being staged."""
        self._known.add(digest)
        self._uses[digest] += 1

    def release(self, digest: Digest) -> None:
        self._uses[digest] -= 1
        if not self._uses[digest]:
            del self._uses[digest]

    def adopt(self, catalogue: Catalogue) -> bool:
        """Admit requests by this catalogue from now on; False if the present one is not older."""
        if catalogue.revision <= self.catalogue.revision:
            return False
        self.catalogue = catalogue
        self._known |= catalogue.digests
        self._shown |= catalogue.digests
        return True

    def view(self) -> RouterView:
        return RouterView(self.catalogue.revision, frozenset(self._uses) - self.catalogue.digests)

    def unused(self, others: Iterable[RouterView]) -> list[Digest]:
        """Contents to unload from the workers, given what all other routers say.

        None while another router admits requests by an older or a newer catalogue.
        """
        used = set(self._uses) | self.catalogue.digests
        for view in others:
            if view.revision != self.catalogue.revision:
                return []
            used |= view.using
        return sorted(self._known - used)

    def forget(self, digest: Digest) -> None:
        """The workers have unloaded it; no effect if it is used again."""
        if digest not in self._uses and digest not in self.catalogue.digests:
            self._known.discard(digest)
            self._shown.discard(digest)
