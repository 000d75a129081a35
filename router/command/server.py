"""The front ends over the models that are served."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from common.background import in_background
from common.garbage_collection import freeze_gc
from common.metric_export import MetricSource, exported
from router.api.access import Access
from router.api.apis import APIS
from router.api.endpoints.record import ApiEndpoint, Backend
from router.api.generation.models import ServedModels
from router.api.grpc.server import GrpcConfig, GrpcFrontend
from router.api.http.app import build_app
from router.api.http.server import HttpConfig, HttpServer
from router.api.page.routes import page_routes
from router.cluster.placement_notice import PlacementNotice
from router.command.admin.endpoint import AdminServer, admin_app
from router.command.model_service import ModelService
from router.command.preflight import taking
from router.config.settings import RouterConfig
from router.dispatch.workers.registry import place_among
from router.dispatch.workers.session import WorkerSession

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Service:
    models: Sequence[ModelService]
    http: HttpServer
    grpc: GrpcFrontend
    admin: AdminServer
    placement_notice: PlacementNotice

    async def drain(self, timeout_s: float, again: asyncio.Event, *, workers_return: bool = True) -> None:
        """Refuse new requests; give running ones `timeout_s` to finish, or until `again` is set.

        See `ClusterDispatcher.drain`.
        """
        _log.info(
            "draining: new requests are refused, running ones have %g s to finish;"
            " a second Ctrl-C or SIGTERM ends them",
            timeout_s,
        )
        self.http.wind_down()
        ending = asyncio.create_task(self._end_requests(again))
        try:
            await self._finish(timeout_s, workers_return=workers_return)
        finally:
            ending.cancel()

    async def _end_requests(self, again: asyncio.Event) -> None:
        """Once `again` is set, with the error `shutting_down`."""
        await again.wait()
        _log.warning("ending the running requests")
        for model in self.models:
            model.generation.fail_all()

    async def _finish(self, timeout_s: float, *, workers_return: bool) -> None:
        began = time.monotonic()
        left = sum(
            await asyncio.gather(
                *(one.dispatcher.drain(timeout_s, workers_return=workers_return) for one in self.models)
            )
        )
        if left:
            _log.warning("%d requests did not finish within --drain-timeout %g s", left, timeout_s)
        # Streams of finished requests may still have to be written.
        rest = max(timeout_s - (time.monotonic() - began), 0.0)
        await asyncio.gather(self.http.stop(rest), self.grpc.stop(rest))

    async def end_workers(self) -> list[str]:
        """End the workers of all models; returns their names."""
        return [name for model in self.models for name in await model.cluster.end_workers()]

    def summary(self, config: RouterConfig, after: str) -> str:
        """One line when everything is ready. `after`: the time that it took."""
        if len(self.models) == 1:
            what = f"{self.models[0].name} is ready {after}: {self.models[0].summary()}"
        else:
            each = (f"{model.name} ({model.summary()})" for model in self.models)
            what = f"{', '.join(each)} are ready {after}"
        scheme, host = "http" if config.access.tls_cert is None else "https", config.frontend.host
        return (
            f"{what}; live page {scheme}://{host}:{self.http.port}/, APIs under"
            f" {scheme}://{host}:{self.http.port}/v1 and gRPC {host}:{self.grpc.port};"
            f" --admin-port {self.admin.port}"
        )


async def serving(
    config: RouterConfig,
    models: Sequence[ModelService],
    access: Access,
    stop: Callable[[bool], None],
    stack: AsyncExitStack,
) -> Service:
    """Start the front ends, which end with `stack`. `config`: of any of the models, in what they share.

    `stop` begins the orderly end of this process; with True, the workers end too. Raises PortTaken.
    """
    _watch(models, access, stack)
    generations = ServedModels(model.generation for model in models)
    http = HttpServer(
        generations,
        HttpConfig(
            host=config.frontend.host,
            port=config.frontend.http_port,
            shared=config.frontend.frontends > 1,
            max_body_bytes=config.access.max_body_bytes,
            access=access,
            keep_alive_s=config.frontend.http_keep_alive,
            write_timeout_s=config.frontend.http_write_timeout,
        ),
        metrics=_metrics(config, models),
        worker_targets=partial(_targets, models),
        endpoints=_page(models),
    )
    grpc = GrpcFrontend(
        generations,
        GrpcConfig(
            host=config.frontend.host,
            port=config.frontend.grpc_port,
            shared=config.frontend.frontends > 1,
            max_message_bytes=config.access.max_body_bytes,
            access=access,
        ),
    )
    for flag, server in (("--http-port", http), ("--grpc-port", grpc)):
        with taking(flag):
            await server.start()
        stack.push_async_callback(server.stop, 0.0)
    admin = AdminServer(
        admin_app(
            {model.name: model.managed() for model in models},
            stop=stop,
            num_siblings=config.frontend.frontends - 1,
        ),
        config.effective_admin_port,
    )
    with taking("--admin-port"):
        await admin.start()
    stack.push_async_callback(admin.stop)
    freeze_gc()
    return Service(models, http, grpc, admin, _placement_notice(models))


def web_app(
    config: RouterConfig, models: Sequence[ModelService], access: Access, stack: AsyncExitStack
) -> Starlette:
    """The HTTP APIs for another server of ASGI; see `serving`."""
    _watch(models, access, stack)
    generations = ServedModels(model.generation for model in models)
    targets, max_bytes = partial(_targets, models), config.access.max_body_bytes
    backend = Backend(APIS, generations, _metrics(config, models), targets, max_bytes)
    return build_app(backend, access, endpoints=_page(models))


def _watch(models: Sequence[ModelService], access: Access, stack: AsyncExitStack) -> None:
    """What every front end needs: this router's part of limits, and the lag of its event loop."""
    if access.keys is not None:
        access.keys.share.place = lambda: place_among(model.registry for model in models)
    in_background(stack, watch_loop(partial(_observe_lag, models)), "loop lag")


def _page(models: Sequence[ModelService]) -> list[ApiEndpoint]:
    return page_routes({model.name: model.status().read for model in models})


def _targets(models: Sequence[ModelService]) -> list[str]:
    return [target for model in models for target in model.registry.metrics_targets()]


def _metrics(config: RouterConfig, models: Sequence[ModelService]) -> CollectorRegistry:
    return exported([_source(model) for model in models], config.operation.metrics_names)


def _source(model: ModelService) -> MetricSource:
    labels = {
        "role": "router",
        "mode": model.config.mode.value,
        "worker": "router",
        "model_name": model.name,
    }
    return MetricSource(model.metrics.registry, labels)


def _observe_lag(models: Sequence[ModelService], seconds: float) -> None:
    for model in models:
        model.metrics.loop_lag.observe(seconds)


def _placement_notice(models: Sequence[ModelService]) -> PlacementNotice:
    def sessions() -> list[WorkerSession]:
        return [session for model in models for session in model.registry.sessions()]

    return PlacementNotice(
        lambda: (session.info.node for session in sessions()),
        with_gpus=any(session.info.device.startswith("cuda") for session in sessions()),
    )


_PERIOD_S: Final = 0.25


async def watch_loop(observe: Callable[[float], object]) -> None:
    """Calls `observe` four times a second with the seconds by which a timer was late.

    Runs until cancelled.
    """
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _PERIOD_S
        await asyncio.sleep(_PERIOD_S)
        observe(max(loop.time() - due, 0.0))
