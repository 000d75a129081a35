"""The workers of one model in Ray, which places and starts them, and restarts them when they die.

Requests never pass through Ray. The router holds a `RayWorker` for each worker, which resolves the address of
the worker's current incarnation.

Workers are detached actors in a namespace of their cluster, and their placement group is detached too, so
both live as long as Ray. A router that joins a Ray finds the workers of its cluster there, and takes them
over; a Ray that the router itself has started ends with it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup

from common.error_text import first_line
from common.main_memory import available_memory
from router.cluster.bundles import bundle_of, gpu_memory, summed, total
from router.cluster.detached_workers import DetachedWorkers, InUse, Shape
from router.cluster.fleet import WantedWorkers, role_of
from router.cluster.nodes import gcs
from router.cluster.ray_connection import ClusterError, RayConnection
from router.cluster.ray_thread import RayThread
from router.cluster.ray_worker import RayWorker, end_actor
from router.cluster.record import ClusterRecord, FirstGroup
from router.cluster.worker_actors import WorkerActors
from router.cluster.worker_config.machine import Machine, device_for
from router.cluster.worker_config.worker_plan import WorkerPlan
from router.config.settings import RouterConfig
from router.dispatch.workers.fencing import Incarnation
from rpc.tls import Identity
from worker.config import WorkerRole

NAMESPACE_OF_WORKERS: Final = "baton."
"""Before the name of their cluster."""
_LOOPBACK: Final = "127.0.0.1"
_ROOM_S: Final = 1.0
"""For how long a call waits for room, so that the thread can be used for something else."""


class Cluster:
    """The workers of one name, over a connection to Ray."""

    def __init__(
        self,
        config: RouterConfig,
        ray_connection: RayConnection,
        actor_class: Callable[[WorkerRole], type] | None = None,
    ) -> None:
        """`actor_class` is for tests: replaces the actor class of each role."""
        self._config = config
        self._settings = config.cluster
        self._ray = ray_connection
        self._is_local = ray_connection.is_local
        self._namespace = f"{NAMESPACE_OF_WORKERS}{self._settings.cluster_name}"
        self._actors = WorkerActors(
            config,
            self._namespace,
            actor_class,
            is_local=self._is_local,
            shares_cores=ray_connection.num_ranks > 1,
        )
        self._acting = RayThread()
        """For operations on workers."""
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

    def known_machine(self) -> Machine | None:
        """The machine of a local Ray; None if only Ray can tell. Raises ClusterError, PlanError."""
        device = self._ray.known_device(self._config)
        return None if device is None else self._machine_on(device)

    async def find(self, on_wait: Callable[[str], None] = lambda _: None) -> Machine:
        """Look for workers in the Ray that was joined, and at the machine for them. `on_wait` is called with
        the nodes that miss.

        Raises ClusterError, PlanError.
        """
        await self.open()
        # Workers that were placed before serve, even if a node has left since.
        if not self.found_workers:
            await self._ray.wait_for_nodes(on_wait)
        return await self._acting.call(self._machine)

    async def open(self) -> None:
        """Raises what Ray raises."""
        await self._ray.asking.call(self._open)

    def _open(self) -> None:
        self._record = ClusterRecord(gcs(), self._namespace)
        self._identity: Identity = self._record.identity()
        self._detached = DetachedWorkers(self._record, self._namespace)
        self._found_group = self._record.group
        self.found_workers = self._found_group is not None

    def _machine(self) -> Machine:
        """The machine on which workers will run."""
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        gpus = int(resources.get("GPU", 0.0))
        self._ray.check_room(gpus)
        return self._machine_on(device_for(self._config.device, gpus))

    def _machine_on(self, device: str) -> Machine:
        return Machine(
            device=device,
            memory_bytes=self._memory_bytes(device),
            cpus=self._ray.rank_cpus(self._config) if self._is_local else self._settings.worker_cpus or 1,
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
        settled = await self._ray.asking.call(lambda: self._record.group)
        self._first_ids = () if settled is None else settled.worker_ids
        self.found_workers &= self._found_group == settled
        await self._until_room(group, on_wait)
        counts = Counter(plan.config.role for plan in plans)
        there = await self._acting.call(
            lambda: self._record.agree(counts, self._detached.actors(), self.keeps_room)
        )
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

    def handle(self, worker_id: str) -> RayWorker:
        """Handle of a wanted or existing worker."""
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
            reaches=self._ray.reaches,
            leads=lambda: self.leads(),
        )

    def settings_digest(self, worker_id: str) -> str:
        """Digest of everything that this router decides about a worker."""
        return self._actors.settings_digest(self._plans[role_of(worker_id)].named(worker_id))

    @property
    def roles(self) -> Collection[WorkerRole]:
        """Roles that workers have in this mode."""
        return self._plans.keys()

    async def wanted(self) -> dict[WorkerRole, WantedWorkers]:
        """The workers that the cluster is to have. Raises what Ray raises if it cannot say."""
        found = {
            role: await self._ray.asking.call(partial(self._record.wanted, role)) for role in self._plans
        }
        return {role: wanted for role, wanted in found.items() if wanted is not None}

    async def ask(self, use: Callable[[ClusterRecord], object]) -> object:
        """What `use` returns, where it may block. Raises what Ray raises."""
        return await self._ray.asking.call(partial(use, self._record))

    async def want(self, role: WorkerRole, workers: WantedWorkers) -> None:
        """Let the cluster have these, for every router. Raises what Ray raises."""
        await self.ask(lambda record: record.keep_wanted(role, workers))

    async def actors(self) -> set[str]:
        """Names of the workers that there are. Raises what Ray raises if it cannot say."""
        return set(await self._ray.asking.call(self._detached.actors))

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
        has: dict[str, float] = await self._ray.asking.call(ray.cluster_resources)
        needed = [self._shape.bundles[role] for role, count in counts.items() for _ in range(count)]
        if all(amount <= has.get(kind, 0.0) for kind, amount in total(needed).items()):
            return ""
        return (
            f"{len(needed)} workers need {summed(needed)}, and the router's own Ray has"
            f" {has.get('CPU', 0.0):g} CPU and {has.get('GPU', 0.0):g} GPU; lower --worker-cpus, or join a"
            " cluster with --ray-address"
        )

    async def routers(self, worker_ids: Collection[str] | None = None) -> list[str]:
        """The routers that are connected to these workers, or to any. Raises what Ray raises."""
        return await self._acting.call(partial(self._detached.routers, worker_ids))

    async def end_workers(self) -> list[str]:
        """End all workers of the cluster, and give their room back. Returns their names."""
        actors = await self._acting.call(self._detached.actors)
        await asyncio.gather(*(end_actor(actor, self._acting) for actor in actors.values()))
        await self._acting.call(self._detached.forget)
        return sorted(actors)

    async def _has_room(self, group: PlacementGroup) -> bool:
        return await self._ray.asking.call(partial(group.wait, _ROOM_S))

    async def incarnations(self) -> list[Incarnation]:
        """The last known process of each worker. Raises what Ray raises if it cannot say."""
        ids = [worker.worker_id for worker in self.workers]
        return await self._ray.asking.call(partial(self._record.incarnations, ids))

    async def keep_incarnation(self, incarnation: Incarnation) -> None:
        """Raises what Ray raises."""
        await self.ask(lambda record: record.keep_incarnation(incarnation))

    async def close(self) -> None:
        """After `find`: end the workers of a Ray that ends with this process."""
        if self._is_local and self._ray.is_up:
            await self.end_workers()

    def _memory_bytes(self, device: str) -> int:
        """Measured before the workers take it, for as long as they live: their settings depend on it."""
        if self._is_local:
            return _gpu_memory_here() if device == "cuda" else available_memory() // self._ray.num_ranks
        if (known := self._record.memory(device)) is not None:
            return known
        measure = ray.remote(gpu_memory if device == "cuda" else available_memory)
        try:
            memory: int = ray.get(
                measure.options(num_cpus=0, num_gpus=1 if device == "cuda" else 0).remote(),
                timeout=self._settings.startup_timeout,
            )
        except RayError as error:
            raise ClusterError(f"no node could be asked for its memory: {first_line(error)}") from error
        self._record.keep_memory(device, memory)
        return memory


def _gpu_memory_here() -> int:
    """Asked by this process, since another one takes seconds to start. Raises ClusterError."""
    try:
        return gpu_memory()
    except (OSError, RuntimeError) as error:
        raise ClusterError(f"this machine's GPU does not say how much memory it has: {error}") from error


def end_workers(configs: Sequence[RouterConfig]) -> list[str]:
    """End the workers of clusters that no router uses; returns their names. Raises ClusterError."""

    async def end() -> list[str]:
        connection = RayConnection(configs)
        await connection.join()
        try:
            return [name for config in configs for name in await _ended(Cluster(config, connection))]
        finally:
            await connection.close()

    return asyncio.run(end())


async def _ended(cluster: Cluster) -> list[str]:
    await cluster.open()
    if routers := await cluster.routers():
        raise ClusterError(f"{', '.join(routers)} uses these workers: `router stop --workers` there")
    return await cluster.end_workers()
