"""Baton's use of Ray: it places workers, starts them, and restarts them when they die.

Requests never pass through Ray. The router holds a `RayWorker` for each worker, which resolves the address of
the worker's current incarnation.

Workers are detached actors in a namespace of their cluster, and their placement group is detached too, so
both live as long as Ray. A router that joins a Ray finds the workers of its cluster there, and takes them
over; a Ray that the router itself has started ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup

from common.error_text import first_line
from router.cluster.bundles import bundle_of, summed, total
from router.cluster.detached_workers import DetachedWorkers, InUse, Shape
from router.cluster.fleet import WantedWorkers, in_order, role_of
from router.cluster.local_ray import num_local_gpus, start_local_ray
from router.cluster.memory import free_main_memory, gpu_memory
from router.cluster.nodes import Node, RayLost, gcs, nodes, until_enough, until_lost
from router.cluster.ray_thread import RayThread
from router.cluster.ray_worker import RayWorker, end_actor
from router.cluster.record import ClusterRecord, FirstGroup
from router.cluster.worker_actors import WorkerActors
from router.cluster.worker_plan import Machine, WorkerPlan, device_for
from router.config.groups.cluster import ClusterSettings
from router.config.settings import LogLevel, RouterConfig
from router.workers.fencing import Incarnation
from rpc.tls import Identity
from worker.config import WorkerRole

__all__ = ["Cluster", "ClusterError", "end_workers"]

_log = logging.getLogger(__name__)

_LOOPBACK: Final = "127.0.0.1"
_CONNECT_S: Final = 60.0
_ROOM_S: Final = 1.0
"""For how long a call waits for room, so that the thread can be used for something else."""


class ClusterError(Exception):
    """Ray cannot be started or reached, or has no room; the message says what to do."""


class Cluster:
    """The workers of one name in a Ray that this process started or joined, until `close`."""

    def __init__(self, config: RouterConfig, actor_class: Callable[[WorkerRole], type] | None = None) -> None:
        """`actor_class` is for tests: replaces the actor class of each role."""
        self._config = config
        self._settings = config.cluster
        self._is_local = self._settings.ray_address is None
        self._actors = WorkerActors(config, actor_class, is_local=self._is_local)
        self._namespace = f"baton.{self._settings.cluster_name}"
        self._num_ranks = config.num_ranks
        self._thread = RayThread()
        self._asking = RayThread()
        """For queries that Ray may not answer, so that nothing else waits behind them."""
        self._acting = RayThread()
        """For operations on workers."""
        self._is_lost = False
        self.workers: list[RayWorker] = []
        """After `place`."""
        self.leads: Callable[[], bool] = lambda: True
        """See `RayWorker`."""
        self.found_workers = False
        """Whether the workers were there before this router. Final after `place`."""
        self._found_group: FirstGroup | None = None
        self._first_ids: tuple[str, ...] = ()
        self._plans: dict[WorkerRole, WorkerPlan] = {}
        """One of each role, under any name."""
        self.rank_cpus = self._settings.worker_cpus or max(1, (os.cpu_count() or 1) // self._num_ranks)

    def known_machine(self) -> Machine | None:
        """The machine of a local Ray without GPUs; None if only Ray can tell.

        Raises ClusterError, PlanError.
        """
        if not self._is_local:
            return None
        gpus = num_local_gpus()
        device = device_for(self._config.device, gpus)
        self._check_room(device, gpus)
        return self._machine_on(device) if device == "cpu" else None

    async def connect(self, on_wait: Callable[[str], None] = lambda _: None) -> Machine:
        """Start or join Ray; takes about 4 s for a local Ray. `on_wait` is called with the missing nodes.

        Raises ClusterError, PlanError.
        """
        await self.join()
        self._found_group = await self._thread.call(lambda: self._record.group)
        self.found_workers = self._found_group is not None
        # Workers that were placed before serve, even if a node has left since.
        if self._settings.wait_for_nodes is not None and not self.found_workers:
            await self._wait_for_nodes(self._settings.wait_for_nodes, on_wait)
        return await self._thread.call(self._machine)

    async def join(self) -> None:
        """The part of `connect` that does not depend on the workers. Raises ClusterError."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._thread.call(self._init)
        except TimeoutError:
            raise ClusterError(self._cannot_connect("no answer")) from None
        except Exception as error:  # Ray also raises plain Exceptions
            raise ClusterError(self._cannot_connect(first_line(error))) from error

    async def _wait_for_nodes(self, wanted: int, on_wait: Callable[[str], None]) -> None:
        try:
            async with asyncio.timeout(self._settings.startup_timeout):
                await until_enough(self.nodes, wanted, on_wait)
        except TimeoutError:
            raise ClusterError(
                f"within --startup-timeout {self._settings.startup_timeout:g} s the cluster did not have the"
                f" {wanted} nodes of --wait-for-nodes; `ray status` shows which are missing"
            ) from None

    async def nodes(self) -> list[Node]:
        """Raises what Ray raises if it cannot say."""
        return await self._asking.call(nodes)

    async def lost(self, on_nodes: Callable[[Sequence[Node]], None] = lambda _: None) -> RayLost:
        """Wait until Ray has ended. `on_nodes` is called with the nodes every 2 s."""

        async def ask() -> list[Node]:
            known = await self.nodes()
            on_nodes(known)
            return known

        loss = await until_lost(ask, self._own_node)
        self._is_lost = True
        return loss

    def _init(self) -> None:
        operation = self._config.operation
        common: dict[str, Any] = {
            "logging_level": logging.ERROR,
            "namespace": self._namespace,
            "log_to_driver": operation.log_workers or operation.log_level is LogLevel.DEBUG,
        }
        if self._is_local:
            start_local_ray(num_cpus=max(self.rank_cpus * self._num_ranks, os.cpu_count() or 1), **common)
        else:
            ray.init(address=self._settings.ray_address, **common)
        self._own_node: str = ray.get_runtime_context().get_node_id()
        self._record = ClusterRecord(gcs(), self._namespace)
        self._identity: Identity = self._record.identity()
        self._detached = DetachedWorkers(self._record, self._namespace)

    def _machine(self) -> Machine:
        """The machine on which workers will run."""
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        device = device_for(self._config.device, resources.get("GPU", 0.0))
        self._check_room(device, int(resources.get("GPU", 0.0)))
        return self._machine_on(device)

    def _machine_on(self, device: str) -> Machine:
        return Machine(
            device=device,
            memory_bytes=self._memory_bytes(device),
            cpus=self.rank_cpus if self._is_local else self._settings.worker_cpus or 1,
            host=_LOOPBACK if self._is_local else "",
        )

    async def place(self, plans: Sequence[WorkerPlan], on_wait: Callable[[str], None]) -> list[RayWorker]:
        """Handles of all workers. Reserves room for all of them, or for none, unless that was done before.

        Their processes start when they are asked for their address. `on_wait` is called once if there is no
        room at first. Raises ClusterError.
        """
        self._plans = {plan.config.role: plan for plan in plans}
        bundles = {role: bundle_of(plan) for role, plan in self._plans.items()}
        self._shape = Shape(self._settings.placement.name, bundles)
        ids = [plan.config.worker_id for plan in plans]
        try:
            group = await self._acting.call(partial(self._detached.settle, self._shape, ids))
        except InUse as error:
            raise ClusterError(
                f"{error} with --cluster-name {self._settings.cluster_name}; use the same --mode, resources"
                " and --placement, or another --cluster-name, or stop it first"
            ) from None
        # Workers of another group were ended for those of this one.
        settled = await self._thread.call(lambda: self._record.group)
        self._first_ids = () if settled is None else settled.worker_ids
        self.found_workers &= self._found_group == settled
        await self._until_room(group, on_wait)
        counts = Counter(plan.config.role for plan in plans)
        there = await self._acting.call(partial(self._agree, counts))
        self.workers = [self.handle(worker_id) for worker_id in there]
        return self.workers

    async def _until_room(self, group: PlacementGroup, on_wait: Callable[[str], None]) -> None:
        bundles = group.bundle_specs
        needed = f"{len(bundles)} workers ({summed(bundles)})"
        try:
            async with asyncio.timeout(self._settings.startup_timeout):
                # `ready()` would start a worker process for this alone.
                if not await self._has_room(group):
                    on_wait(f"waiting for room for {needed}")
                    while not await self._has_room(group):
                        pass
        except TimeoutError:
            raise ClusterError(
                f"within --startup-timeout {self._settings.startup_timeout:g} s the cluster had no room for"
                f" {needed} with --placement {self._settings.placement.value}; ask for fewer, or add nodes"
            ) from None

    def _agree(self, counts: Mapping[WorkerRole, int]) -> Sequence[str]:
        """The workers that the cluster is to have, and those that there are besides.

        Their number is what routers have agreed on, unless that of the settings is another one than then.
        Blocks.
        """
        names: set[str] = set(self._detached.actors())
        for role, number in counts.items():
            wanted = self._record.first_wanted(role, WantedWorkers.first(role, number))
            if wanted.configured != number:
                wanted = wanted.resized(role, number, self.keeps_room).configured_as(number)
                self._record.keep_wanted(role, wanted)
            names.update(wanted.worker_ids)
        if not names:  # scaled to zero: a router learns from a worker what it can serve
            one = WantedWorkers.first(WorkerRole.DECODE, 1).configured_as(counts[WorkerRole.DECODE])
            self._record.keep_wanted(WorkerRole.DECODE, one)
            names.update(one.worker_ids)
        return in_order(names)

    def handle(self, worker_id: str) -> RayWorker:
        """Of a worker that there is, or is to be."""
        plan = self._plans[role_of(worker_id)].named(worker_id)

        def find() -> Any:
            group, index = self._detached.place(worker_id, self._shape)
            return self._actors.actor(plan, self._identity.certificate, group, index)

        return RayWorker(
            plan,
            find,
            self._record,
            self._acting,
            identity=self._identity,
            reaches=self._reaches,
            leads=lambda: self.leads(),
        )

    def settings_digest(self, worker_id: str) -> str:
        """Of everything that this router decides about a worker."""
        return self._actors.settings_digest(self._plans[role_of(worker_id)].named(worker_id))

    @property
    def roles(self) -> Collection[WorkerRole]:
        """Of which there are workers in this mode."""
        return self._plans.keys()

    async def wanted(self) -> dict[WorkerRole, WantedWorkers]:
        """The workers that the cluster is to have. Raises what Ray raises if it cannot say."""
        found = {role: await self._asking.call(partial(self._record.wanted, role)) for role in self._plans}
        return {role: wanted for role, wanted in found.items() if wanted is not None}

    async def ask(self, use: Callable[[ClusterRecord], object]) -> object:
        """What `use` returns, where it may block. Raises what Ray raises."""
        return await self._asking.call(partial(use, self._record))

    async def want(self, role: WorkerRole, workers: WantedWorkers) -> None:
        """Let the cluster have these, for every router. Raises what Ray raises."""
        await self.ask(lambda record: record.keep_wanted(role, workers))

    async def actors(self) -> set[str]:
        """Names of the workers that there are. Raises what Ray raises if it cannot say."""
        return set(await self._asking.call(self._detached.actors))

    async def give_back(self, worker_id: str) -> None:
        """What a worker had that has ended, and is not wanted any more."""
        await self._acting.call(partial(self._detached.give_back, worker_id))

    def keeps_room(self, worker_id: str) -> bool:
        """Whether the room of a worker stays reserved without it: that of those that were placed first."""
        return worker_id in self._first_ids

    async def lacks_room(self, counts: Mapping[WorkerRole, int]) -> str:
        """Why there cannot be that many workers of each role; empty if there can, or may. Raises what Ray
        raises if it cannot say.
        """
        if not self._is_local:
            return ""  # Ray's autoscaler may add nodes
        has: dict[str, float] = await self._asking.call(ray.cluster_resources)
        needed = [self._shape.bundles[role] for role, count in counts.items() for _ in range(count)]
        if all(amount <= has.get(kind, 0.0) for kind, amount in total(needed).items()):
            return ""
        return (
            f"{len(needed)} workers need {summed(needed)}, and the router's own Ray has"
            f" {has.get('CPU', 0.0):g} CPU and {has.get('GPU', 0.0):g} GPU; lower --worker-cpus, or join a"
            " cluster with --ray-address"
        )

    async def routers(self) -> list[str]:
        """The routers that are connected to the workers that there are."""
        return await self._acting.call(self._detached.routers)

    async def end_workers(self) -> list[str]:
        """End all workers of the cluster, and give their room back. Returns their names."""
        actors = await self._acting.call(self._detached.actors)
        await asyncio.gather(*(end_actor(actor, self._acting) for actor in actors.values()))
        await self._acting.call(self._detached.forget)
        return sorted(actors)

    async def _has_room(self, group: PlacementGroup) -> bool:
        return await self._asking.call(partial(group.wait, _ROOM_S))

    async def dead_nodes(self) -> set[str]:
        """Ids of the nodes that Ray has declared dead. Raises what Ray raises if it cannot say."""
        return {node.id for node in await self.nodes() if not node.alive}

    async def incarnations(self) -> list[Incarnation]:
        """The last known process of each worker. Raises what Ray raises if it cannot say."""
        ids = [worker.worker_id for worker in self.workers]
        return await self._asking.call(partial(self._record.incarnations, ids))

    async def keep_incarnation(self, incarnation: Incarnation) -> None:
        """Raises what Ray raises."""
        await self.ask(lambda record: record.keep_incarnation(incarnation))

    async def _reaches(self, node_id: str) -> bool:
        """Whether Ray answers, and its health checks reach that node."""
        try:
            return any(node.alive and node.id == node_id for node in await self.nodes())
        except Exception as error:  # Ray's errors share no base class
            _log.debug("Ray cannot say which nodes it reaches: %s", error)
            return False

    async def close(self) -> None:
        """Leave Ray; if this process started it, end it with its workers. Safe to call at any point."""
        if self._is_lost or not ray.is_initialized():
            return
        if self._is_local:
            await self.end_workers()
        await self._thread.call(ray.shutdown)

    def _check_room(self, device: str, gpus: int) -> None:
        """Raises ClusterError for a local Ray, which cannot grow; a cluster may."""
        if self._is_local and device == "cuda" and gpus < self._num_ranks:
            raise ClusterError(
                f"{self._num_ranks} ranks of workers need a GPU each and this machine has {gpus}; lower"
                " --tensor-parallel-size, --decode-workers or --prefill-workers, or join a larger cluster"
                " with --ray-address"
            )

    def _memory_bytes(self, device: str) -> int:
        """Measured before the workers take it, for as long as they live: their settings depend on it."""
        if device == "cpu" and self._is_local:
            return free_main_memory() // self._num_ranks
        if (known := self._record.memory(device)) is not None:
            return known
        measure = ray.remote(gpu_memory if device == "cuda" else free_main_memory)
        try:
            memory: int = ray.get(
                measure.options(num_cpus=0, num_gpus=1 if device == "cuda" else 0).remote(),
                timeout=self._settings.startup_timeout,
            )
        except RayError as error:
            raise ClusterError(f"no node could be asked for its memory: {first_line(error)}") from error
        self._record.keep_memory(device, memory)
        return memory

    def _cannot_connect(self, reason: str) -> str:
        if self._is_local:
            return f"Ray could not be started on this machine: {reason}"
        return (
            f"no Ray cluster can be joined at --ray-address {self._settings.ray_address}: {reason}; start one"
            " (`ray start --head`, or `ray up deploy/cluster.yaml`) and give this process its token"
            " (RAY_AUTH_MODE=token and the same RAY_AUTH_TOKEN), or leave the flag out for a local Ray"
        )


def end_workers(settings: ClusterSettings) -> list[str]:
    """End the workers of a cluster that no router uses; returns their names. Raises ClusterError."""

    async def end() -> list[str]:
        cluster = Cluster(RouterConfig(cluster=settings))
        await cluster.join()
        try:
            if routers := await cluster.routers():
                raise ClusterError(f"{', '.join(routers)} uses these workers: `router stop --workers` there")
            return await cluster.end_workers()
        finally:
            await cluster.close()

    return asyncio.run(end())
