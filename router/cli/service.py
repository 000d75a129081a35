"""The life of the router process: resolve the model, start Ray, serve, drain, clean up."""

from __future__ import annotations

import asyncio
import importlib
import logging
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from engine.device.cpu_dtype import preferred_cpu_dtype
from engine.loader.checkpoint import Checkpoint, CheckpointError, resolve
from engine.model_config.errors import UnsupportedModel
from router.cli.ports import PortTaken, check_free
from router.cli.progress import StartupDisplay
from router.cli.shutdown import Interrupted, Shutdown
from router.cluster.plan_warnings import warnings_of
from router.cluster.ray_cluster import Cluster, ClusterError
from router.cluster.worker_plan import Machine, PlanError, WorkerPlan, plan_workers
from router.config.settings import Dtype, RouterConfig
from router.frontend.access import Access
from router.frontend.api_keys import BadKeyFile
from rpc.tls import BadCertificate

if TYPE_CHECKING:
    from router.cli.serving import Service

__all__ = ["CANNOT_START", "StartupFailed", "serve"]

_log = logging.getLogger(__name__)

_LOOPBACK: Final = "127.0.0.1"


class StartupFailed(Exception):
    """The router could not start to serve; the message says why."""


CANNOT_START: Final = (
    BadCertificate,
    BadKeyFile,
    CheckpointError,
    ClusterError,
    PlanError,
    PortTaken,
    StartupFailed,
    UnsupportedModel,
)
"""Errors that the user can act on. They are printed as one line, without a traceback."""


async def serve(config: RouterConfig) -> bool:
    """Run until SIGTERM or SIGINT, then drain. Raises the errors of CANNOT_START, and RayLost.

    Returns whether the workers are to end too, when all front ends have ended.
    """
    shutdown = Shutdown()
    shutdown.install()
    async with AsyncExitStack() as stack:
        try:
            with StartupDisplay() as display:
                service = await shutdown.unless_requested(_Start(config, display, stack, shutdown).run())
                shutdown.install()
        except Interrupted:
            _log.info("interrupted while starting")
            return False
        loss = await shutdown.unless(service.cluster.lost(service.placement_notice))
        if loss is None:
            await service.drain(config.operation.drain_timeout)
            if config.frontend.frontends > 1:
                return shutdown.ends_workers
            if shutdown.ends_workers:
                _log.info("ended %s", ", ".join(await service.cluster.end_workers()))
            elif config.cluster.ray_address is not None:
                _log.info("the workers go on; `router stop --workers` ends them")
            return False
        _log.error("%s; the router ends", loss)
        # Workers may outlive Ray for a while and finish their requests, but none is restarted.
        await service.drain(config.operation.drain_timeout, workers_return=False)
        raise loss


@dataclass(frozen=True, slots=True)
class _Start:
    """The first half of a start, up to Ray; each step pushes its cleanup on `stack`."""

    config: RouterConfig
    display: StartupDisplay
    stack: AsyncExitStack
    shutdown: Shutdown

    async def run(self) -> Service:
        config = self.config
        host = config.frontend.host
        if config.frontend.frontends == 1:  # otherwise they are held for all front ends
            check_free("--http-port", host, config.frontend.http_port)
            check_free("--grpc-port", host, config.frontend.grpc_port)
        check_free("--admin-port", _LOOPBACK, config.effective_admin_port)
        access = Access.load(config)
        if access.has_files:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, access.reload)
            watch = asyncio.create_task(access.watch(), name="key and certificate files")
            self.stack.callback(watch.cancel)
        with self.display.stage(f"model {config.model}"):
            checkpoint = await asyncio.to_thread(resolve, config.model, self.display.progress)
        cluster = Cluster(config)
        machine = cluster.known_machine()
        # Before Ray starts where possible: a plan that cannot work is refused within a second.
        plans = None if machine is None else await self._plans(checkpoint, machine)
        importing = asyncio.create_task(asyncio.to_thread(importlib.import_module, "router.cli.serving"))
        self.stack.push_async_callback(cluster.close)
        with self.display.stage(f"Ray ({config.cluster.ray_address or 'local'})"):
            connected = await cluster.connect(on_wait=self.display.waiting)
        if plans is None:
            plans = await self._plans(checkpoint, connected)
        serving = await importing
        start = serving.Serving(config, self.display, self.stack, access, checkpoint, self.shutdown.request)
        try:
            service: Service = await start.run(cluster, plans)
        except serving.CANNOT_SERVE as error:
            raise StartupFailed(str(error)) from error
        return service

    async def _plans(self, checkpoint: Checkpoint, machine: Machine) -> list[WorkerPlan]:
        if machine.device == "cpu" and self.config.dtype is Dtype.AUTO:
            with self.display.stage("dtype for this CPU"):
                machine = replace(machine, cpu_dtype=await asyncio.to_thread(preferred_cpu_dtype))
        for warning in warnings_of(self.config, machine):
            _log.warning(warning)
        return plan_workers(self.config, checkpoint, machine)
