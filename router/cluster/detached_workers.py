"""The workers of a cluster as Ray has them: named, detached actors and their placement group. All calls
block.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    remove_placement_group,
)

from router.cluster.record import ClusterRecord

__all__ = ["DETACHED", "DetachedWorkers", "InUse"]

_log = logging.getLogger(__name__)

DETACHED: Final = "detached"
_ANSWER_S: Final = 5.0
"""For a worker to say which routers are connected to it."""


class InUse(Exception):
    """Other workers of the same cluster serve a router; the message names it."""


class DetachedWorkers:
    """Every actor in the namespace that this process has joined is a worker."""

    def __init__(self, record: ClusterRecord, namespace: str) -> None:
        self._record = record
        self._namespace = namespace

    def group(
        self, worker_ids: Sequence[str], bundles: Sequence[dict[str, float]], strategy: str
    ) -> PlacementGroup:
        """The placement group of these workers, which another router may have made.

        Workers of another group are ended first. Raises InUse if a router uses them.
        """
        shape = repr((strategy, list(zip(worker_ids, bundles, strict=True))))
        name = f"{self._namespace} {blake2b(shape.encode(), digest_size=6).hexdigest()}"
        before = self._record.first_group(name)
        if before != name:
            if routers := self.routers():
                raise InUse(f"{', '.join(routers)} serves other workers")
            _log.warning("workers of other settings are ended: their number, resources or placement differ")
            for actor in self.actors().values():
                ray.kill(actor, no_restart=True)
            _remove(before)
            self._record.keep_group(name)
        return _found(name) or _made(name, bundles, strategy)

    def actors(self) -> dict[str, Any]:
        """By worker id."""
        found = {}
        for worker_id in list_named_actors():
            with suppress(ValueError):  # it has ended meanwhile
                found[worker_id] = ray.get_actor(worker_id)
        return found

    def routers(self) -> list[str]:
        """The routers that are connected to the workers."""
        found: set[str] = set()
        for actor in self.actors().values():
            with suppress(RayError):  # a worker that does not answer has no router
                found.update(ray.get(actor.routers.remote(), timeout=_ANSWER_S))
        return sorted(found)

    def forget(self) -> None:
        """Give the room of ended workers back, and what routers share about them."""
        if (group := self._record.group) is not None:
            _remove(group)
        self._record.clear()


def _found(name: str) -> PlacementGroup | None:
    try:
        group: PlacementGroup = get_placement_group(name)
    except ValueError:
        return None
    return group


def _made(name: str, bundles: Sequence[dict[str, float]], strategy: str) -> PlacementGroup:
    try:
        group: PlacementGroup = placement_group(
            list(bundles), strategy=strategy, name=name, lifetime=DETACHED
        )
    except RayError:  # another router was faster
        group = get_placement_group(name)
    return group


def _remove(group: str) -> None:
    with suppress(ValueError):  # it is gone already
        remove_placement_group(get_placement_group(group))
