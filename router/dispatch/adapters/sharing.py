"""A catalogue of adapters, and a router's view of it, as other routers read them."""

from __future__ import annotations

import json
from typing import Any

from router.dispatch.adapters.table import Adapter, Catalogue, RouterView


def catalogue_to_json(catalogue: Catalogue) -> bytes:
    found = [
        [adapter.name, adapter.path, adapter.digest.hex(), adapter.rank, adapter.created, *adapter.invocation]
        for adapter in catalogue.adapters.values()
    ]
    return json.dumps(found).encode()


def catalogue_from_json(revision: int, text: bytes) -> Catalogue:
    found: list[list[Any]] = json.loads(text)
    adapters = (
        Adapter(name, path, bytes.fromhex(digest), rank, created, tuple(invocation))
        for name, path, digest, rank, created, *invocation in found
    )
    return Catalogue(revision, {adapter.name: adapter for adapter in adapters})


def view_to_json(view: RouterView) -> bytes:
    return json.dumps([view.revision, sorted(digest.hex() for digest in view.using)]).encode()


def view_from_json(text: bytes) -> RouterView:
    revision, using = json.loads(text)
    return RouterView(revision, frozenset(bytes.fromhex(digest) for digest in using))
