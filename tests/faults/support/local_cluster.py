"""A whole cluster in one process, for faults that end none: real workers and router, no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from common.background import in_background
from common.metric_export import MetricSource, exported
from encode_worker.role import EncodeWorker
from engine.config import Forecast, LoraConfig, SpeculationConfig
from engine.model_config.model_spec import ModelSpec
from engine.model_config.pooling_spec import PoolingSpec
from engine.modeling.loader.weights_identity import shape_identity
from router.api.access import OPEN_ACCESS, Access
from router.api.generation.generation import Generation
from router.api.generation.models import ServedModels
from router.api.generation.served_model import ServedModel
from router.api.generation.text.pair_form import PairForm
from router.api.grpc.server import GrpcConfig, GrpcFrontend
from router.api.http.server import HttpConfig, HttpServer
from router.api.media.images import Images
from router.api.page.routes import page_routes
from router.api.page.status import StatusReader
from router.cluster.record import ClusterRecord
from router.cluster.shared_record import weights_record
from router.command.admin.drain import WorkerDrainer
from router.command.server import watch_loop
from router.config.choices import Mode, UpdateMode
from router.config.settings import RouterConfig
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.dispatch.weights.weight_updates import WeightUpdates
from router.dispatch.workers.member import Member, WorkerUnavailable
from router.dispatch.workers.registry import Registry
from router.request_limits import RequestLimits
from rpc.baton.v1 import worker_pb2
from rpc.channel import Endpoint
from tests.engine_config import engine_config
from tests.faults.support.small_model import MAX_LEN, SmallModel
from tests.unit.router.cluster.key_values import KeyValues
from worker.assembly import Assemble, assemble
from worker.config import WorkerConfig, WorkerRole
from worker.process.engine_loop import EngineDied
from worker.process.host import WorkerHost

_ROLES = {
    WorkerRole.PREFILL: worker_pb2.ROLE_PREFILL,
    WorkerRole.DECODE: worker_pb2.ROLE_DECODE,
    WorkerRole.ENCODE: worker_pb2.ROLE_ENCODE,
}
_PATIENCE_S = 20.0
_WHOLE_PROMPTS: dict[str, Any] = {
    "chunk_budget": None,
    "max_prefill_tokens": MAX_LEN,
    "radix_cache": False,
}
"""Settings of encoders."""


@dataclass
class LocalWorker:
    """Implements `router.dispatch.workers.registry.WorkerHandle`."""

    worker_id: str
    role: worker_pb2.Role
    host: WorkerHost

    is_down: bool = False

    async def endpoint(self) -> Endpoint:
        if self.is_down:
            raise WorkerUnavailable("it is restarted")
        return Endpoint(self.host.address)

    async def restart(self) -> None:
        """End it in the midst of its requests, and start it anew."""
        self.is_down = True
        await self.host.stop()
        await self.host.start()
        self.is_down = False

    async def drain(self, seconds: float) -> None:
        await self.host.drain(seconds)

    async def stop(self) -> None:
        if not self.is_down:
            self.is_down = True
            await self.host.stop()

    async def revive(self) -> None:
        await self.host.start()
        self.is_down = False


async def local_worker(
    config: WorkerConfig, stack: AsyncExitStack, assemble: Assemble, deaths: list[EngineDied]
) -> LocalWorker:
    host = WorkerHost(config, assemble, on_death=deaths.append)
    await host.start()
    worker = LocalWorker(config.worker_id, _ROLES[config.role], host)
    stack.push_async_callback(worker.stop)
    return worker


@dataclass
class LocalCluster:
    registry: Registry
    http: HttpServer
    grpc: GrpcFrontend
    generation: Generation
    workers: list[LocalWorker]
    deaths: list[EngineDied] = field(default_factory=list)
    """Engines that failed."""
    others: list[LocalCluster] = field(default_factory=list)
    """Further routers of the same workers."""
    end: Callable[[], Awaitable[None]] | None = None
    """Ends one of `others`."""

    @property
    def weights(self) -> WeightUpdates:
        assert self.generation.weights is not None
        return self.generation.weights

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.port}"

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.grpc.port}"

    async def stats(self) -> list[worker_pb2.WorkerStats]:
        return [await session.stats() for session in self.registry.sessions()]

    async def all_pages_back(self, within_s: float = _PATIENCE_S) -> None:
        """Waits until free + cached = total on every worker. Raises TimeoutError."""
        async with asyncio.timeout(within_s):
            while any(s.pages.free + s.pages.cached != s.pages.total for s in await self.stats()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@asynccontextmanager
async def local_cluster(
    small: SmallModel,
    mode: Mode,
    *,
    transport: str = "loopback",
    assemble: Assemble = assemble,
    num_pages: int = 512,
    max_running_requests: int = 64,
    speculation: SpeculationConfig | None = None,
    lora: LoraConfig | None = None,
    access: Access = OPEN_ACCESS,
    pooling: PoolingSpec | None = None,
    each: int = 1,
    update_mode: UpdateMode = UpdateMode.ROLLING,
    pairs: PairForm | None = None,
    images: Images | None = None,
    encoders: int = 0,
    return_routed_experts: bool = False,
    identify_weights: bool = True,
    names: Sequence[str] = ("",),
    attention_backend: str = "auto",
    forecast: Forecast = Forecast.PEAK,
) -> AsyncIterator[LocalCluster]:
    """`each`: workers of a role; mixed, there is one role. `encoders`: encode workers beside them.
    `assemble` is where a test gets its hand in.
    `names`: of its routers."""
    roles = [WorkerRole.DECODE] if mode is Mode.MIXED else [WorkerRole.PREFILL, WorkerRole.DECODE]
    deaths: list[EngineDied] = []
    engine = engine_config(
        model_path=small.folder,
        num_pages=num_pages,
        max_model_len=MAX_LEN,
        max_running_requests=max_running_requests,
        speculation=speculation,
        lora=lora,
        attention_backend=attention_backend,
        forecast=forecast,
        pooling=pooling,
        return_routed_experts=return_routed_experts,
        **_WHOLE_PROMPTS if _encodes(small) else {"chunk_budget": 128},
    )
    async with AsyncExitStack() as stack:
        handles = []
        encode_workers = [(WorkerRole.ENCODE, number) for number in range(encoders)]
        for role, number in [*product(roles, range(each)), *encode_workers]:
            encodes = role is WorkerRole.ENCODE
            config = WorkerConfig(
                worker_id=f"{role.value}-{number}",
                role=role,
                model="small",
                engine=EncodeWorker.engine(engine) if encodes else engine,
                transport=transport if mode is not Mode.MIXED and not encodes else None,
                identify_weights=identify_weights,
            )
            handles.append(await local_worker(config, stack, assemble, deaths))
        metrics = RouterMetrics()

        def on_change(member: Member, up: bool) -> None:
            metrics.workers.changed(member.handle.worker_id, member.role_name, up=up)

        store = KeyValues()
        others = [await _another(name, small, mode, handles, store, stack) for name in names[1:]]
        registry = await stack.enter_async_context(Registry(handles, on_change, name=names[0]))
        assert await registry.wait_for_all(_PATIENCE_S)
        for role in roles:
            _watch(metrics, registry, role)
        lag = asyncio.create_task(watch_loop(metrics.loop_lag.observe))
        stack.callback(lag.cancel)
        limits = RequestLimits(routed_experts=return_routed_experts)
        http, grpc, generation = _open_frontends(
            small, mode, registry, metrics, stack, access, pooling, pairs, limits, store, images
        )
        cluster = LocalCluster(registry, http, grpc, generation, handles, deaths, others)
        cluster.weights._how = update_mode
        await cluster.weights.begin()
        in_background(stack, cluster.weights.run(), "weights")
        for frontend in (http, grpc):
            await frontend.start()
            stack.push_async_callback(_closing(frontend.stop))
        yield cluster


async def _another(
    name: str,
    small: SmallModel,
    mode: Mode,
    handles: list[LocalWorker],
    store: KeyValues,
    stack: AsyncExitStack,
) -> LocalCluster:
    """One more router of the same workers."""
    own = await stack.enter_async_context(AsyncExitStack())
    registry = await own.enter_async_context(Registry(handles, name=name))
    assert await registry.wait_for_all(_PATIENCE_S)
    http, grpc, generation = _open_frontends(
        small, mode, registry, RouterMetrics(), own, OPEN_ACCESS, None, None, RequestLimits(), store
    )
    cluster = LocalCluster(registry, http, grpc, generation, handles, end=own.aclose)
    await cluster.weights.begin()
    in_background(own, cluster.weights.run(), "weights")
    await http.start()
    own.push_async_callback(_closing(http.stop))
    return cluster


def _encodes(small: SmallModel) -> bool:
    return ModelSpec.from_folder(small.folder).attention.bidirectional


def _watch(metrics: RouterMetrics, registry: Registry, role: WorkerRole) -> None:
    metrics.workers.watch(role.value, lambda: 1, lambda: len(registry.ready(_ROLES[role])))


def _open_frontends(
    small: SmallModel,
    mode: Mode,
    registry: Registry,
    metrics: RouterMetrics,
    stack: AsyncExitStack,
    access: Access,
    pooling: PoolingSpec | None,
    pairs: PairForm | None,
    limits: RequestLimits,
    store: KeyValues,
    images: Images | None = None,
) -> tuple[HttpServer, GrpcFrontend, Generation]:
    dispatcher = ClusterDispatcher(RouterConfig(model="small", mode=mode), registry, metrics)
    model = ServedModel(
        name="small",
        shape=shape_identity(small.folder),
        numerics="float32 on cpu",
        path=small.folder,
        mode=mode.value,
        max_model_len=MAX_LEN,
        vocab_size=ModelSpec.from_folder(small.folder).vocab_size,
        eos_token_ids=(1,),
        has_states=hasattr(small.model.config, "linear_num_key_heads"),
        pooling=pooling,
        pairs=pairs or PairForm(),
        **({} if images is None else {"no_images": ""}),
    )
    drainer = WorkerDrainer(registry, dispatcher.migrate_from, needs_roles=mode is Mode.DISAGG)
    in_background(stack, drainer.follow(), "drains")
    generation = Generation(model, small.tokenizer, dispatcher, limits, images=images)
    record = ClusterRecord(store, "small")

    async def ask(use: Callable[[ClusterRecord], object]) -> object:
        return use(record)

    shared = weights_record(ask)
    generation.weights = WeightUpdates(registry, dispatcher, generation.abort_all, shared=shared)
    stack.push_async_callback(generation.close)
    models = ServedModels([generation])
    status = StatusReader(
        model, registry, metrics.recent, dispatcher.prefill_queue, lambda: dispatcher.running
    )
    labels = {"role": "router", "mode": model.mode, "worker": "router", "model_name": model.name}
    http = HttpServer(
        models,
        HttpConfig(port=0, access=access),
        metrics=exported([MetricSource(metrics.registry, labels)]),
        worker_targets=registry.metrics_targets,
        endpoints=page_routes({model.name: status.read}),
    )
    return http, GrpcFrontend(models, GrpcConfig(port=0)), generation


def _closing(stop: Callable[[float], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    return lambda: stop(1.0)
