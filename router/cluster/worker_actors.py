"""The Ray actor of a worker: its class, resources, settings and environment."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from common.version import build
from engine.config import SchedulerConfig
from router.cluster.detached_workers import DETACHED
from router.cluster.worker_config.worker_plan import WorkerPlan
from router.config.flags.text_settings import environment_of
from router.config.settings import RouterConfig
from worker.config import WorkerRole

_FOREVER: Final = -1


class WorkerActors:
    """Finds and creates actors of workers, which are named after them."""

    def __init__(
        self,
        config: RouterConfig,
        namespace: str,
        actor_class: Callable[[WorkerRole], type] | None,
        *,
        is_local: bool,
        shares_cores: bool,
    ) -> None:
        """`is_local`: in a Ray of one node, which ends with this process. `shares_cores`: a worker may not
        be the only process that computes on its machine.
        """
        self._config = config
        self._namespace = namespace
        self._shares_cores = shares_cores
        self._actor_class = actor_class or _actor_class
        self._users = environment_of(config.cluster.worker_env)
        self._is_local = is_local

    def actor(self, plan: WorkerPlan, certificate: bytes, group: PlacementGroup, index: int) -> Any:
        """The actor of this name; created in bundle `index` of the group if there is none.

        `certificate`: of the routers that it serves. Blocks.
        """
        config = replace(
            plan.config,
            settings_digest=self.settings_digest(plan),
            router_certificate=certificate,
            environment={k: v for k, v in self._environment(plan).items() if k not in self._users},
        )
        # Ray sets these when the process starts, as the dynamic loader may need them. Such a process takes
        # half a second longer to start.
        runtime_env = {"runtime_env": {"env_vars": self._users}} if self._users else {}
        return (
            ray.remote(self._actor_class(plan.config.role))
            .options(
                num_cpus=plan.cpus,
                num_gpus=plan.gpus,  # the leader's; its other ranks take the rest of the bundle
                max_restarts=_FOREVER,
                name=plan.config.worker_id,
                namespace=self._namespace,
                lifetime=DETACHED,
                get_if_exists=True,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
                **runtime_env,
            )
            .remote(config, index, logging.getLevelName(self._config.operation.log_level.value.upper()))
        )

    def settings_digest(self, plan: WorkerPlan) -> str:
        """Digest of all that a router decides about a worker, in two parts: see `registry.computes`."""
        config = plan.config
        engine = replace(
            config.engine, scheduler=SchedulerConfig(), num_pages=0, kv_memory_fraction=0.0, max_model_len=0
        )
        what = config.model, config.source, config.transport, config.kv_by_ranks, engine, build()
        how = plan, self._environment(plan), self._users, self._config.operation.log_level
        return "-".join(blake2b(repr(part).encode(), digest_size=6).hexdigest() for part in (what, how))

    def _environment(self, plan: WorkerPlan) -> dict[str, str]:
        environment = {"OMP_NUM_THREADS": str(plan.cpus)}
        if self._shares_cores:
            # OpenMP's idle threads spin. Where processes share cores, they keep busy threads of other
            # processes from running: two workers with two threads each, on two cores, decoded fifteen to
            # thirty times slower. A worker with cores of its own keeps OpenMP's default: with 1000 turns it
            # decoded at 60% of the speed.
            environment["GOMP_SPINCOUNT"] = os.environ.get("GOMP_SPINCOUNT", "1000")
        if self._is_local:
            # UCX would stripe over all interfaces; all peers are on this one.
            environment["UCX_NET_DEVICES"] = os.environ.get("UCX_NET_DEVICES", "lo")
        if plan.ranks > 1:
            # Ranks share a machine; NCCL would open its ports on every network of it.
            environment["NCCL_SOCKET_IFNAME"] = os.environ.get("NCCL_SOCKET_IFNAME", "lo")
        return environment


def _actor_class(role: WorkerRole) -> type:
    from worker.process.roles import ACTORS

    return ACTORS[role]
