"""The life of the router process: resolve the models, start Ray, serve, drain, clean up."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from common.background import cancelled, in_background
from common.cpu_times import CpuTimes
from common.main_memory import available_memory
from engine.device.cpu_dtype import preferred_cpu_dtype
from engine.model_config.errors import UnsupportedModel, WeightsError
from engine.modeling.loader.checkpoint import Checkpoint, CheckpointError, resolve
from engine.modeling.loader.read_ahead import weights_ahead
from engine.modeling.loader.weight_files import check_whole, weight_files
from router.api.access import Access, BadKeyFile
from router.cluster.nodes import RayLost
from router.cluster.ray_cluster import Cluster
from router.cluster.ray_connection import ClusterError, RayConnection
from router.cluster.worker_config.machine import Machine, PlanError
from router.cluster.worker_config.plan_warnings import busy_cores, warnings_of
from router.cluster.worker_config.worker_plan import WorkerPlan, plan_workers
from router.command.preflight import LOOPBACK, PortTaken, check_free
from router.command.progress import StartupDisplay
from router.command.shutdown import Interrupted, Shutdown
from router.config.choices import Dtype, LogFormat
from router.config.settings import RouterConfig
from rpc.tls import BadCertificate

if TYPE_CHECKING:
    from router.command.model_service import ModelService
    from router.command.server import Service

_log = logging.getLogger(__name__)

_RESOLVED_S: Final = 0.7
"""For models to be found and planned before Ray starts; those that take longer are so meanwhile."""


class StartupFailed(Exception):
    """The router could not start to serve; the message says why."""


class ClusterEnded(Exception):
    """The workers were ended through another router; the message says so."""


CANNOT_START: Final = (
    BadCertificate,
    BadKeyFile,
    CheckpointError,
    ClusterError,
    PlanError,
    PortTaken,
    StartupFailed,
    UnsupportedModel,
    WeightsError,
)
"""Errors that the user can act on. They are printed as one line, without a traceback."""


async def serve(configs: Sequence[RouterConfig], began: CpuTimes | None = None) -> bool:
    """Run until SIGTERM or SIGINT, then drain. `configs`: of each model; they share all other settings.
    `began`: when this process had just started.

    Returns whether the workers are to end too, when all front ends have ended. Raises the errors of
    CANNOT_START, RayLost and ClusterEnded.
    """
    config, shutdown = configs[0], Shutdown()
    shutdown.install()
    async with AsyncExitStack() as stack:
        connection = RayConnection(configs)
        access = Access.load(config)
        shutdown.on_reload = access.reload
        try:
            with StartupDisplay(as_log=config.operation.log_format is LogFormat.JSON) as display:
                start = Start(configs, connection, access, display, stack, shutdown.install, began)
                service = await shutdown.unless_requested(start.service(shutdown.request))
        except Interrupted:
            _log.info("interrupted while starting")
            return False
        loss = await shutdown.unless(_first_loss(connection, service))
        if loss is None:
            await service.drain(config.operation.drain_timeout, shutdown.again())
            if config.frontend.frontends > 1:
                return shutdown.ends_workers
            if shutdown.ends_workers:
                _log.info("ended %s", ", ".join(await service.end_workers()))
            elif config.cluster.ray_address is not None:
                _log.info("the workers go on; `router stop --workers` ends them")
            return False
        _log.error("%s; the router ends", loss)
        # Workers may outlive Ray for a while and finish their requests, but none is restarted.
        await service.drain(config.operation.drain_timeout, shutdown.again(), workers_return=False)
        raise loss


async def _first_loss(connection: RayConnection, service: Service) -> RayLost | ClusterEnded:
    """What makes this router useless: the end of Ray, or of the workers of a model."""
    losses: list[asyncio.Task[RayLost | ClusterEnded]] = [asyncio.create_task(_ray_lost(connection, service))]
    losses += [asyncio.create_task(_ended(model)) for model in service.models]
    try:
        done, _ = await asyncio.wait(losses, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        await cancelled(*losses)


async def _ray_lost(connection: RayConnection, service: Service) -> RayLost | ClusterEnded:
    return await connection.lost(service.placement_notice)


async def _ended(model: ModelService) -> RayLost | ClusterEnded:
    await model.scaling.ended.wait()
    return ClusterEnded(f"the workers of {model.name} were ended through another router")


@dataclass(frozen=True, slots=True)
class Start:
    """Each step pushes its cleanup on `stack`."""

    configs: Sequence[RouterConfig]
    connection: RayConnection
    access: Access
    display: StartupDisplay
    stack: AsyncExitStack
    on_ray: Callable[[], None] = lambda: None
    """Called when Ray has started, which handles signals in a way of its own."""
    began: CpuTimes | None = None
    """When this process had just started."""

    async def service(self, stop: Callable[[bool], None]) -> Service:
        """The models and their front ends. `stop` begins the orderly end of this process; with True, the
        workers end too. Raises the errors of CANNOT_START.
        """
        config = self.configs[0]
        self._check_ports(config)
        models = await self.models()
        from router.command.server import serving

        service = await serving(config, models, self.access, stop, self.stack)
        self.display.say(service.summary(config, self.display.after()))
        return service

    async def models(self) -> list[ModelService]:
        """All, ready to serve. Raises the errors of CANNOT_START."""
        if self.access.has_files:
            in_background(self.stack, self.access.watch(), "key and certificate files")
        dtype = _CpuDtype()
        models = [_Model(one, self._display(one), self.connection, dtype) for one in self.configs]
        with ExitStack() as ahead:
            await self._resolve_and_join(models, ahead)
            return await self._all_ready(models)

    async def _resolve_and_join(self, models: Sequence[_Model], ahead: ExitStack) -> None:
        """A plan that cannot work is refused before Ray starts, unless a model is converted or fetched first:
        then Ray starts meanwhile, and the CPU is measured.
        """
        tasks = [asyncio.create_task(self._resolve(models, ahead))]
        try:
            await asyncio.wait(tasks, timeout=_RESOLVED_S)
            if tasks[0].done():
                tasks[0].result()
                self._warn_of_busy_cores(models)
            else:
                for model in models:
                    model.measure_dtype()
            self.stack.push_async_callback(self.connection.close)
            tasks.append(asyncio.create_task(self._join()))
            importing = asyncio.to_thread(importlib.import_module, "router.command.server")
            await asyncio.gather(*tasks, importing)
        finally:
            for task in tasks:
                task.cancel()

    async def _resolve(self, models: Sequence[_Model], ahead: ExitStack) -> None:
        for model in models:
            await model.resolve()
        for model in models:
            model.read_ahead(ahead, available_memory() // 2 // len(models))

    def _warn_of_busy_cores(self, models: Sequence[_Model]) -> None:
        if any(model.is_on_cpu for model in models):
            for warning in busy_cores(self.began, CpuTimes.now()):
                _log.warning("%s", warning)

    async def _join(self) -> None:
        with self.display.stage(f"Ray ({self.configs[0].cluster.ray_address or 'local'})"):
            await self.connection.join(self.display.waiting)
        self.on_ray()

    def _check_ports(self, config: RouterConfig) -> None:
        """Raises PortTaken."""
        host = config.frontend.host
        if config.frontend.frontends == 1:  # otherwise they are held for all front ends
            check_free("--http-port", host, config.frontend.http_port)
            check_free("--grpc-port", host, config.frontend.grpc_port)
        check_free("--admin-port", LOOPBACK, config.effective_admin_port)

    def _display(self, config: RouterConfig) -> StartupDisplay:
        return self.display if len(self.configs) == 1 else self.display.of(config.served_model_name or "")

    async def _all_ready(self, models: Sequence[_Model]) -> list[ModelService]:
        """Start all at once: each waits for its own workers, most of the time."""
        router = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ} {socket.gethostname()}:{os.getpid()}"
        stacks = [await self.stack.enter_async_context(AsyncExitStack()) for _ in models]
        starts = [
            asyncio.create_task(model.serve(stack, router))
            for model, stack in zip(models, stacks, strict=True)
        ]
        try:
            return await asyncio.gather(*starts)
        finally:
            for start in starts:
                start.cancel()
            await asyncio.wait(starts)


class _CpuDtype:
    """The dtype of --dtype auto on this CPU, measured once for all models."""

    def __init__(self) -> None:
        self._measuring: asyncio.Task[str] | None = None

    def measured(self) -> asyncio.Task[str]:
        """The first call starts the measurement."""
        if self._measuring is None:
            self._measuring = asyncio.create_task(asyncio.to_thread(preferred_cpu_dtype))
        return self._measuring


class _Model:
    """The start of one model."""

    def __init__(
        self, config: RouterConfig, display: StartupDisplay, connection: RayConnection, dtype: _CpuDtype
    ) -> None:
        self._config = config
        self._dtype = dtype
        self._display = display
        self._connection = connection
        self._cluster = Cluster(config, connection)
        self._checkpoint: Checkpoint
        self._plans: list[WorkerPlan] | None = None

    async def resolve(self) -> None:
        """Find the model, and plan its workers before Ray starts where possible: a plan that cannot work is
        refused within a second.
        """
        machine = self._cluster.known_machine()
        with self._display.stage(f"model {self._config.model}"):
            self._checkpoint = await asyncio.to_thread(
                resolve,
                self._config.model,
                self._display.progress,
                keep_codes=self._config.keeps_codes,
            )
        if machine is not None:
            self._plans = await self._planned(machine)
        await asyncio.to_thread(self._check_files)

    def _check_files(self) -> None:
        """What a worker and the tokenizer would find missing later. Raises StartupFailed, WeightsError."""
        folder = self._checkpoint.path
        if not (folder / "tokenizer.json").is_file():
            raise StartupFailed(
                self._display.labelled(
                    f"{folder} has no tokenizer.json; download it again, or write one there with"
                    " transformers' save_pretrained"
                )
            )
        if self._connection.is_local and self._config.load_format != "dummy":
            check_whole(weight_files(folder))

    def measure_dtype(self) -> None:
        """Start to, if its workers will compute on this CPU in the dtype that is faster."""
        machine = self._cluster.known_machine()
        if machine is not None and self._needs_dtype(machine):
            self._dtype.measured()

    def _needs_dtype(self, machine: Machine) -> bool:
        return machine.device == "cpu" and self._config.dtype is Dtype.AUTO

    @property
    def is_on_cpu(self) -> bool:
        """Whether it is known before Ray starts that its workers compute on the CPU of this machine."""
        return self._plans is not None and self._plans[0].config.engine.device == "cpu"

    def read_ahead(self, stack: ExitStack, room: int) -> None:
        """`room` bytes of the weights at most, while Ray and the workers start on this machine: its disk is
        idle then, and loading from it takes most of a large model's start. On a CPU packing does, and the
        start would have less of it. Raises WeightsError.
        """
        engine = self._plans[0].config.engine if self._plans else None
        if engine is not None and engine.device == "cuda" and engine.load_format != "dummy":
            stack.enter_context(weights_ahead(self._checkpoint.path, room))

    async def serve(self, stack: AsyncExitStack, router: str) -> ModelService:
        """`router`: its name, unique among those of the workers; later ones sort after earlier ones."""
        from router.command.model_service import CANNOT_SERVE, ModelStart  # imported while Ray started

        machine = await self._cluster.find(on_wait=self._display.waiting)
        stack.push_async_callback(self._cluster.close)
        plans = self._plans or await self._planned(machine)
        start = ModelStart(self._config, self._display, stack, self._checkpoint, self._connection, router)
        try:
            return await start.run(self._cluster, plans)
        except CANNOT_SERVE as error:
            raise StartupFailed(self._display.labelled(str(error))) from error

    async def _planned(self, machine: Machine) -> list[WorkerPlan]:
        if self._needs_dtype(machine):
            with self._display.stage("dtype for this CPU"):
                machine = replace(machine, cpu_dtype=await self._dtype.measured())
        for warning in warnings_of(self._config, machine):
            _log.warning("%s", self._display.labelled(warning))
        return plan_workers(self._config, self._checkpoint, machine)
