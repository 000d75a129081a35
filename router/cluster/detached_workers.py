"""The workers of a cluster as Ray has them: named, detached actors and their placement groups. All calls
block.

The workers that are placed first share a group: Ray finds room for all of them, or for none. Each later one
has a group of its own, which ends with it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from router.cluster.bundles import Bundle
from router.cluster.fleet import role_of
from router.cluster.nodes import nodes
from router.cluster.record import ClusterRecord, FirstGroup
from router.dispatch.workers.member import WorkerUnavailable
from worker.config import WorkerRole

_log = logging.getLogger(__name__)

DETACHED: Final = "detached"
_ANSWER_S: Final = 5.0
"""For a worker to say which routers are connected to it."""
_RELEASE_S: Final = 10.0
"""Ray takes back the room of ended workers within 0.2 s, unless their node is cut off."""
_POLL_S: Final = 0.02
_NODE_LABEL: Final = "ray.io/node-id"
"""Ray labels every node with its id."""


class InUse(Exception):
    """Other workers of the same cluster serve a router; the message names it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Places of a cluster's workers."""

    strategy: str
    """Ray's name of it."""
    bundles: Mapping[WorkerRole, Bundle]
    """Resources of a worker of each role."""

    @property
    def digest(self) -> str:
        bundles = sorted((role.value, sorted(bundle.items())) for role, bundle in self.bundles.items())
        return blake2b(repr((self.strategy, bundles)).encode(), digest_size=6).hexdigest()


class DetachedWorkers:
    """Every named actor in the namespace is a worker."""

    def __init__(self, record: ClusterRecord, namespace: str) -> None:
        self._record = record
        self._namespace = namespace

    def settle(self, shape: Shape, worker_ids: Sequence[str]) -> PlacementGroup:
        """The group of the first workers, which another router may have made: if there is none, of these.

        Workers with places of another shape are ended first. Raises InUse if a router uses them.
        """
        new = FirstGroup(
            f"{self._namespace} {shape.digest} {len(worker_ids)}", shape.digest, tuple(worker_ids)
        )
        first = self._record.first_group(new)
        if first.shape != shape.digest:
            if routers := self.routers():
                raise InUse(f"{', '.join(routers)} serves other workers")
            _log.warning("workers of other settings are ended: their roles, resources or placement differ")
            for actor in self.actors().values():
                ray.kill(actor, no_restart=True)
            self._remove_groups()
            self._record.forget_workers()
            self._record.keep_group(new)
            first = new
        bundles = [shape.bundles[role_of(worker_id)] for worker_id in first.worker_ids]
        return _found(first.name) or _made(first.name, bundles, strategy=shape.strategy)

    def place(self, worker_id: str, shape: Shape) -> tuple[PlacementGroup, int]:
        """Group and bundle of a worker; a new group if it has none yet. Raises WorkerUnavailable."""
        first = self._record.group
        if first is not None and worker_id in first.worker_ids:
            return get_placement_group(first.name), first.worker_ids.index(worker_id)
        name = self._own_group(worker_id)
        bundle = shape.bundles[role_of(worker_id)]
        return _found(name) or _made(name, [bundle], **self._as_others(bundle, shape.strategy)), 0

    def _as_others(self, bundle: Bundle, strategy: str) -> dict[str, Any]:
        """Where one more worker goes, by the strategy of all: Ray's applies within a group only."""
        placed = [node for group in self._groups() for node in group["bundles_to_node_id"].values()]
        workers_on = Counter(node for node in placed if node)
        if strategy == "STRICT_SPREAD" and workers_on:
            if len(placed) > workers_on.total():
                raise WorkerUnavailable("another new worker waits for a node, and gets one first")
            selector = {_NODE_LABEL: f"!in({','.join(sorted(workers_on))})"}
            return {"strategy": "PACK", "bundle_label_selector": [selector]}
        usable = [node.id for node in nodes() if node.alive and (node.has_gpu or not bundle.get("GPU"))]
        if strategy == "SPREAD" and usable:
            # Preferred only: another one is taken if this has no room.
            return {
                "strategy": "STRICT_PACK",
                "_soft_target_node_id": min(usable, key=workers_on.__getitem__),
            }
        return {"strategy": "PACK"}

    def give_back(self, worker_id: str) -> None:
        """Give back what an ended worker had for itself. The room of the first workers stays theirs."""
        _remove(self._own_group(worker_id))
        self._record.keep_stopped(worker_id, False)

    def _own_group(self, worker_id: str) -> str:
        return f"{self._namespace} {worker_id}"

    def _remove_groups(self) -> None:
        """Return when their room is free: Ray spreads new workers only over nodes that have room already."""
        groups = self._groups()
        for group in groups:
            _remove(str(group["name"]))
        ids = {str(group["placement_group_id"]) for group in groups}
        deadline = time.monotonic() + _RELEASE_S
        while any(id in resource for resource in ray.cluster_resources() for id in ids):  # type: ignore[no-untyped-call]
            if time.monotonic() > deadline:
                _log.warning("ended workers still occupy their nodes; new workers may share one")
                return
            time.sleep(_POLL_S)

    def _groups(self) -> list[dict[str, Any]]:
        """As Ray describes them; it also lists groups that were removed."""
        return [
            group
            for group in placement_group_table().values()
            if group["state"] != "REMOVED" and str(group["name"]).startswith(f"{self._namespace} ")
        ]

    def actors(self) -> dict[str, Any]:
        """Actors by worker id."""
        found = {}
        for actor in list_named_actors(all_namespaces=True):
            if actor["namespace"] == self._namespace:
                with suppress(ValueError):  # it has ended meanwhile
                    found[actor["name"]] = ray.get_actor(actor["name"], self._namespace)
        return found

    def routers(self, worker_ids: Collection[str] | None = None) -> list[str]:
        """The routers that are connected to these workers, or to any."""
        found: set[str] = set()
        for name, actor in self.actors().items():
            if worker_ids is not None and name not in worker_ids:
                continue
            with suppress(RayError):  # a worker that does not answer has no router
                found.update(ray.get(actor.routers.remote(), timeout=_ANSWER_S))
        return sorted(found)

    def forget(self) -> None:
        """Give the room of ended workers back, and what routers share about them."""
        self._remove_groups()
        self._record.clear()


def _found(name: str) -> PlacementGroup | None:
    try:
        group: PlacementGroup = get_placement_group(name)
    except ValueError:
        return None
    return group


def _made(name: str, bundles: Sequence[Bundle], **options: Any) -> PlacementGroup:
    try:
        group: PlacementGroup = placement_group(
            [dict(bundle) for bundle in bundles], name=name, lifetime=DETACHED, **options
        )
    except RayError:  # another router was faster
        group = get_placement_group(name)
    return group


def _remove(group: str) -> None:
    with suppress(ValueError):  # it is gone already
        remove_placement_group(get_placement_group(group))
