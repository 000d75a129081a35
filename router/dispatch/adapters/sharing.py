"""How the routers of a model agree on its adapters: a catalogue with revisions, and a view of each router."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from router.dispatch.adapters.table import Adapter, Catalogue, RouterView


class SharedCatalogue(Protocol):
    """Kept where all routers reach it. Methods raise what that place raises."""

    async def read(self, since: Catalogue) -> Catalogue:
        """The latest one, which is `since` if there is none newer."""
        ...

    async def write(self, catalogue: Catalogue) -> bool:
        """False if another router has written this revision: read, and try again."""
        ...

    async def views(self) -> Mapping[str, RouterView]:
        """Views by the name of the router, also of routers that have ended."""
        ...

    async def keep_view(self, router: str, view: RouterView) -> None:
        """In place of the router's earlier one."""
        ...

    async def forget_view(self, router: str) -> None: ...


def catalogue_to_json(catalogue: Catalogue) -> bytes:
    found = [
        [adapter.name, adapter.path, adapter.digest.hex(), adapter.rank, adapter.created]
        for adapter in catalogue.adapters.values()
    ]
    return json.dumps(found).encode()


def catalogue_from_json(revision: int, text: bytes) -> Catalogue:
    found: list[list[Any]] = json.loads(text)
    adapters = (
        Adapter(name, path, bytes.fromhex(digest), rank, created)
        for name, path, digest, rank, created in found
    )
    return Catalogue(revision, {adapter.name: adapter for adapter in adapters})


def view_to_json(view: RouterView) -> bytes:
    return json.dumps([view.revision, sorted(digest.hex() for digest in view.using)]).encode()


def view_from_json(text: bytes) -> RouterView:
    revision, using = json.loads(text)
    return RouterView(revision, frozenset(bytes.fromhex(digest) for digest in using))
