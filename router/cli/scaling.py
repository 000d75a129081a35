"""Begins what changes the number of workers, by command and by load."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial

from router.admin.autoscaler import Autoscaler, LoadReader
from router.admin.drain import WorkerDrainer
from router.admin.scaling import Scaling
from router.cluster.ray_cluster import Cluster
from router.config.flags.text_settings import bounds_of
from router.config.settings import RouterConfig
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.workers.registry import Registry


def begin_scaling(
    config: RouterConfig,
    cluster: Cluster,
    registry: Registry,
    drainer: WorkerDrainer,
    dispatcher: ClusterDispatcher,
    metrics: RouterMetrics,
    stack: AsyncExitStack,
) -> Scaling:
    """Its tasks end with `stack`."""
    bounds = bounds_of(config.cluster.autoscale)
    dispatcher.wakes_workers = any(not own.least for own in bounds.values())
    scaling = Scaling(
        cluster,
        registry,
        drainer,
        drain_timeout_s=config.operation.drain_timeout,
        may_wake=dispatcher.wakes_workers,
        on_gone=metrics.worker_gone,
    )
    for role in scaling.roles:
        metrics.watch_workers(role.value, partial(scaling.desired, role), partial(scaling.ready, role))
    tasks = [scaling.run()]
    if bounds:
        load = LoadReader(
            config, registry, dispatcher.prefill_queue, metrics.recent, lambda: dispatcher.running
        )
        tasks.append(Autoscaler(config, scaling, load.read, lambda: registry.leads).run())
    for task in tasks:
        stack.callback(asyncio.create_task(task).cancel)
    return scaling
