"""Ray, as Baton uses it: it finds room for workers, starts them, and starts them again when they die.

No request ever passes through Ray. What the router keeps of a worker is a `RayWorker`: it can be asked where
the worker's current incarnation listens.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import ray
from ray._private import services
from ray.exceptions import ActorDiedError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from router.cluster.ray_thread import RayThread
from router.cluster.worker_plan import Machine, WorkerPlan, device_for
from router.config.settings import LogLevel, RouterConfig
from router.workers.registry import WorkerBroken, WorkerUnavailable
from rpc.baton.v1 import worker_pb2
from rpc.channel import Endpoint
from rpc.tls import Identity
from worker.config import WorkerRole

__all__ = ["Cluster", "ClusterError", "RayWorker"]

_log = logging.getLogger(__name__)

_LOOPBACK: Final = "127.0.0.1"
_OBJECT_STORE_BYTES: Final = 100 << 20
"""Ray's least would do: nothing but addresses goes through it."""
_STOP_S: Final = 10.0
_CONNECT_S: Final = 60.0
_ASK_AGAIN_S: Final = 20.0
_ANSWER_S: Final = 10.0
"""A worker that was up and does not say where it is within this time hangs."""
_FOREVER: Final = -1


class ClusterError(Exception):
    """Ray cannot be started, reached, or has no room; the message says what to do."""


class RayWorker:
    """One worker over all of its incarnations. Implements `registry.WorkerHandle`."""

    def __init__(self, plan: WorkerPlan, create: Callable[[], Any], identity: Identity) -> None:
        """`create` makes the actor in the place reserved for this worker; `identity` is the router's."""
        self.worker_id = plan.config.worker_id
        self.role = _ROLES[plan.config.role]
        self._create = create
        self._actor = create()
        self._identity = identity
        self._was_up = False
        """This incarnation has answered before."""
        self._was_stopped = False

    async def endpoint(self) -> Endpoint:
        """Loads the model if that is still to be done. Raises WorkerUnavailable, WorkerBroken."""
        actor = self._actor
        try:
            listening = await asyncio.wait_for(
                actor.start.remote(), _ANSWER_S if self._was_up else _ASK_AGAIN_S
            )
        except (TimeoutError, RayError) as error:
            if actor is not self._actor:
                # `revive` replaced it meanwhile: what becomes of it says nothing about its successor.
                raise WorkerUnavailable("it was started anew") from None
            raise await self._trouble_of(error) from None
        if actor is not self._actor:
            raise WorkerUnavailable("it was started anew")
        self._was_up = True
        return Endpoint(listening.address, self._identity.call(listening.certificate))

    async def _trouble_of(self, error: TimeoutError | RayError) -> WorkerUnavailable:
        """What the failure of the current actor's `start` means; does what helps against it."""
        match error:
            case TimeoutError():
                return self._no_answer()
            case RayTaskError():
                return WorkerBroken(_last_line(error))
            case ActorDiedError():
                # Ray restarts a process that dies, but not an actor that fails to come to life.
                if not self._was_stopped:
                    await self.revive()
                return WorkerBroken(_last_line(error))
            case _:
                self._was_up = False
                return WorkerUnavailable(_first_line(error))

    def _no_answer(self) -> WorkerUnavailable:
        if not self._was_up:
            # It is loading, and the next call waits for the same load; or Ray has lost this one.
            return WorkerUnavailable("still loading")
        # Stopped or stuck. Ray sees a process that lives, so it is for us to end it.
        ray.kill(self._actor, no_restart=False)
        self._was_up = False
        return WorkerUnavailable("it did not answer, and is started anew")

    async def progress(self) -> tuple[str, int, int] | None:
        """What it is loading, and how many of how many bytes; None while it cannot answer."""
        try:
            state = await self._actor.progress.remote()
        except RayError:
            return None
        return state.stage, state.done, state.total

    async def revive(self) -> None:
        """A new actor in the same place."""
        self._actor, self._was_up, self._was_stopped = self._create(), False, False

    async def stop(self) -> None:
        """In order if it answers, and for good in any case."""
        self._was_stopped = True
        try:
            async with asyncio.timeout(_STOP_S):
                await self._actor.stop.remote()
        except (RayError, TimeoutError) as error:
            _log.debug("%s did not stop by itself: %s", self.worker_id, error)
        ray.kill(self._actor, no_restart=True)


class Cluster:
    """A Ray cluster that this process has started or joined, until `close`."""

    def __init__(self, config: RouterConfig, actor_class: Callable[[WorkerRole], type] | None = None) -> None:
        """`actor_class` is for tests: what runs a role, instead of the real workers."""
        self._config = config
        self._actor_class = actor_class or _actor_class
        self._is_local = config.ray_address is None
        self._identity = Identity.draw()
        """By it the workers know this router: they are told its certificate when they are made."""
        self._num_ranks = config.num_ranks
        self._thread = RayThread()
        self._asking = RayThread()
        """For questions that Ray may leave unanswered: nothing else waits behind them."""
        self._workers: list[RayWorker] = []
        self._group: PlacementGroup | None = None
        self._rank_cpus = config.worker_cpus or max(1, (os.cpu_count() or 1) // self._num_ranks)

    async def connect(self) -> Machine:
        """About 4 s for a Ray of our own. Raises ClusterError, PlanError."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._thread.call(self._init)
        except TimeoutError:
            raise ClusterError(self._cannot_connect("no answer")) from None
        except Exception as error:  # Ray raises bare Exceptions too
            raise ClusterError(self._cannot_connect(_first_line(error))) from error
        return await self._thread.call(self._machine)

    def _init(self) -> None:
        common: dict[str, Any] = {
            "logging_level": logging.ERROR,
            "log_to_driver": self._config.log_level is LogLevel.DEBUG,
        }
        if not self._is_local:
            ray.init(address=self._config.ray_address, **common)
            return
        with _own_process_groups():
            ray.init(
                address="local",
                num_cpus=self._rank_cpus * self._num_ranks,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                _node_ip_address=_LOOPBACK,
                **common,
            )

    def _machine(self) -> Machine:
        """What a worker finds where it will live."""
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        device = device_for(self._config.device, resources.get("GPU", 0.0))
        self._check_room(device, resources)
        return Machine(
            device=device,
            memory_bytes=self._memory_bytes(device),
            cpus=self._rank_cpus if self._is_local else self._config.worker_cpus or 1,
            host=_LOOPBACK if self._is_local else "",
        )

    async def place(self, plans: Sequence[WorkerPlan], on_wait: Callable[[str], None]) -> list[RayWorker]:
        """Finds room for all workers, or for none, and starts their processes.

        `on_wait` is told when the cluster has to grow first. Raises ClusterError.
        """
        bundles = [_bundle(plan) for plan in plans]
        # Together as far as possible: KV travels fastest within a node.
        self._group = placement_group(bundles, strategy="PACK")
        on_wait(f"waiting for room for {len(plans)} workers ({_summed(bundles)})")
        try:
            async with asyncio.timeout(self._config.startup_timeout):
                await self._group.ready()
        except TimeoutError:
            raise ClusterError(
                f"within --startup-timeout {self._config.startup_timeout:g} s the cluster had no room for"
                f" {len(plans)} workers ({_summed(bundles)}); ask for fewer, or add nodes"
            ) from None
        self._workers = [
            RayWorker(plan, partial(self._actor, plan, self._group, index), self._identity)
            for index, plan in enumerate(plans)
        ]
        return self._workers

    async def dead_nodes(self) -> set[str]:
        """Ids of the nodes that Ray has declared dead. Raises what Ray raises if it cannot say."""
        return await self._asking.call(_dead_nodes)

    async def close(self) -> None:
        """Ends the workers, and Ray if it is ours. Safe to call at any point."""
        if not ray.is_initialized():
            return
        await asyncio.gather(*(worker.stop() for worker in self._workers))
        await self._thread.call(ray.shutdown)

    def _actor(self, plan: WorkerPlan, group: PlacementGroup, index: int) -> Any:
        config = replace(plan.config, router_certificate=self._identity.certificate)
        return (
            ray.remote(self._actor_class(plan.config.role))
            .options(
                num_cpus=plan.cpus,
                num_gpus=plan.gpus,  # the leader's; its other ranks take the rest of the bundle
                max_restarts=_FOREVER,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
                runtime_env={"env_vars": self._worker_environment(plan)},
            )
            .remote(config, index, logging.getLevelName(self._config.log_level.value.upper()))
        )

    def _worker_environment(self, plan: WorkerPlan) -> dict[str, str]:
        environment = {"OMP_NUM_THREADS": str(plan.cpus)}
        if self._num_ranks > 1:
            # OpenMP's idle threads spin, and where processes share cores they keep each other's busy
            # threads from running: two workers with two threads each, on two cores, decoded fifteen to
            # thirty times slower. A worker alone on its cores may spin as OpenMP likes.
            environment["GOMP_SPINCOUNT"] = os.environ.get("GOMP_SPINCOUNT", "1000")
        if self._is_local:
            # UCX would stripe over every interface that it finds; all peers are on this one.
            environment["UCX_NET_DEVICES"] = os.environ.get("UCX_NET_DEVICES", "lo")
        if plan.ranks > 1:
            # Ranks share a machine; NCCL would open its ports to every network that this one is in.
            environment["NCCL_SOCKET_IFNAME"] = os.environ.get("NCCL_SOCKET_IFNAME", "lo")
        return environment

    def _check_room(self, device: str, resources: dict[str, float]) -> None:
        """A local Ray cannot grow; a cluster may, so there we wait."""
        gpus = int(resources.get("GPU", 0.0))
        if self._is_local and device == "cuda" and gpus < self._num_ranks:
            raise ClusterError(
                f"{self._num_ranks} ranks of workers need a GPU each and this machine has {gpus}; lower"
                " --tensor-parallel-size, --decode-workers or --prefill-workers, or join a larger cluster"
                " with --ray-address"
            )

    def _memory_bytes(self, device: str) -> int:
        if device == "cpu" and self._is_local:
            return _free_main_memory() // self._num_ranks
        measure = ray.remote(_gpu_memory if device == "cuda" else _free_main_memory)
        try:
            memory: int = ray.get(
                measure.options(num_cpus=0, num_gpus=1 if device == "cuda" else 0).remote(),
                timeout=self._config.startup_timeout,
            )
        except RayError as error:
            raise ClusterError(f"no node could be asked for its memory: {_first_line(error)}") from error
        return memory

    def _cannot_connect(self, reason: str) -> str:
        if self._is_local:
            return f"Ray could not be started on this machine: {reason}"
        return (
            f"no Ray cluster can be joined at --ray-address {self._config.ray_address}: {reason}; start one"
            " (`ray start --head`, or `ray up deploy/cluster.yaml`) and give this process its token"
            " (RAY_AUTH_MODE=token and the same RAY_AUTH_TOKEN), or leave the flag out for a local Ray"
        )


def _actor_class(role: WorkerRole) -> type:
    if role is WorkerRole.PREFILL:
        from prefill_worker.actor import PrefillWorker

        return PrefillWorker
    from decode_worker.actor import DecodeWorker

    return DecodeWorker


def _bundle(plan: WorkerPlan) -> dict[str, float]:
    """Room for all ranks of a worker. Ray never spreads a bundle over nodes."""
    gpus = {"GPU": float(plan.gpus * plan.ranks)} if plan.gpus else {}
    return {"CPU": float(plan.cpus * plan.ranks), **gpus}


def _summed(bundles: Sequence[dict[str, float]]) -> str:
    kinds = sorted({kind for bundle in bundles for kind in bundle})
    return ", ".join(f"{sum(bundle.get(kind, 0) for bundle in bundles):g} {kind}" for kind in kinds)


def _dead_nodes() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if not node["Alive"]}  # type: ignore[no-untyped-call]


def _gpu_memory() -> int:
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory)


def _free_main_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _own_process_groups() -> Iterator[None]:
    """Ray's processes do not get the signals that are meant for ours.

    A SIGTERM to the whole group (timeout, supervisord, many CI runners) would end the workers under the
    requests that the router wants to drain.
    """
    popen = services.ConsolePopen

    class Detached(popen):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, process_group=0, **options)

    services.ConsolePopen = Detached  # type: ignore[misc]
    try:
        yield
    finally:
        services.ConsolePopen = popen  # type: ignore[misc]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _last_line(error: RayError) -> str:
    """Of the traceback from the worker: the exception itself."""
    return str(error).strip().rpartition("\n")[2]


_ROLES: Final = {
    WorkerRole.PREFILL: worker_pb2.ROLE_PREFILL,
    WorkerRole.DECODE: worker_pb2.ROLE_DECODE,
}
