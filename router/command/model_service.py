"""One model: places its workers, and serves it once they are ready.

Imported while Ray starts: the front ends and their libraries take most of a second of CPU time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from common.background import in_background, repeat, supervised
from engine.config import EngineConfig
from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_impl import ModelImpl
from engine.modeling.loader.checkpoint import Checkpoint
from engine.modeling.loader.weights_identity import served_shape
from router.api.generation.audit.record_file import BadRecordFile, open_records
from router.api.generation.envelope import limits_of
from router.api.generation.explanation import Explanation
from router.api.generation.generation import Generation
from router.api.generation.history import History
from router.api.generation.sampling_defaults import sampling_defaults
from router.api.generation.served_model import ServedModel
from router.api.generation.text.pair_form import PairForm
from router.api.generation.text.tokenizer import Tokenizer, TokenizerError, check_text_files
from router.api.page.status import StatusReader
from router.cluster.fault_board import FaultBoard
from router.cluster.nodes import workers_by_node
from router.cluster.ray_cluster import Cluster
from router.cluster.ray_connection import RayConnection
from router.cluster.ray_worker import RayWorker
from router.cluster.shared_record import adapter_record, weights_record
from router.cluster.worker_config.worker_plan import WorkerPlan
from router.command.admin.autoscaler import Autoscaler, LoadReader
from router.command.admin.drain import WorkerDrainer
from router.command.admin.endpoint import ManagedModel
from router.command.admin.roll import Roll
from router.command.admin.scaling import Scaling
from router.command.images import open_images
from router.command.preflight import taking
from router.command.progress import StartupDisplay
from router.config.choices import Mode
from router.config.flags.text_settings import RerankerOverrides, adapters_of, bounds_of
from router.config.settings import RouterConfig
from router.dispatch.adapters.adapters import ServedAdapters
from router.dispatch.dispatcher import ClusterDispatcher, OnEnd
from router.dispatch.kv_events.feed import KVEventFeed, kv_event_feed
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.dispatch.probes.link_check import LinkBroken, check_links
from router.dispatch.probes.worker_probe import WorkerProbe
from router.dispatch.tracing.otlp import TraceExporter
from router.dispatch.weights.weight_updates import WeightUpdates
from router.dispatch.workers.fencing import Fencing
from router.dispatch.workers.member import Member, WorkerBroken
from router.dispatch.workers.registry import Registry
from router.errors import RouterError
from rpc.baton.v1 import worker_pb2

_log = logging.getLogger(__name__)

_WATCH_S: Final = 0.3
_FOUND_S: Final = 3.0
"""For all workers that ran before this router to connect, before it serves with those that have."""


class NotReady(Exception):
    """Workers were not ready in time; the message says which, and why."""


CANNOT_SERVE: Final = (BadRecordFile, LinkBroken, NotReady, TokenizerError, UnsupportedModel, WorkerBroken)
"""Errors that the user can act on."""


@dataclass(frozen=True, slots=True)
class ModelService:
    """A model that is served: its workers, its queue, its text processing and its figures."""

    config: RouterConfig
    cluster: Cluster
    registry: Registry
    dispatcher: ClusterDispatcher
    drainer: WorkerDrainer
    scaling: Scaling
    generation: Generation
    history: History
    metrics: RouterMetrics
    engine: EngineConfig

    @property
    def name(self) -> str:
        return self.generation.model.name

    def status(self) -> StatusReader:
        return StatusReader(
            self.generation.model,
            self.registry,
            self.metrics.recent,
            self.dispatcher.prefill_queue,
            lambda: self.dispatcher.running,
        )

    def managed(self) -> ManagedModel:
        """For the admin endpoint."""
        return ManagedModel(
            self.registry,
            self.drainer,
            scaling=self.scaling,
            explain=Explanation(self.generation, self.history, self.dispatcher.statuses).find,
            drain_timeout_s=self.config.operation.drain_timeout,
            startup_timeout_s=self.config.cluster.startup_timeout,
        )

    def summary(self) -> str:
        config = self.config
        counts = config.num_prefill_workers, config.decode_workers, config.encode_workers
        roles = zip(counts, ("prefill", "decode", "encode"), strict=True)
        workers = " + ".join(f"{count} {role}" for count, role in roles if count)
        modules = ""
        if self.generation.model.impl is ModelImpl.TRANSFORMERS:
            modules = ", served by transformers' modules"
        return f"{config.mode.value}, {workers} on {self.engine.device} in {self.engine.dtype}{modules}"


@dataclass(frozen=True, slots=True)
class ModelStart:
    """Each step pushes its cleanup on `stack`."""

    config: RouterConfig
    display: StartupDisplay
    stack: AsyncExitStack
    checkpoint: Checkpoint
    connection: RayConnection
    router_name: str
    """Name of this router, for the workers."""

    async def run(self, cluster: Cluster, plans: list[WorkerPlan]) -> ModelService:
        """Raises what placing and loading the workers raises."""
        config, checkpoint = self.config, self.checkpoint
        spec = await asyncio.to_thread(checkpoint.spec, config.model_impl)
        template = config.frontend.chat_template
        check_text_files(checkpoint.path, template)  # before workers load weights for nothing
        # Concurrently with the workers, which take most of a start.
        words, ids = spec.words_of_kinds, spec.vocab_size
        load = partial(Tokenizer.load, checkpoint.path, vocab_size=ids, template=template, words=words)
        engine = plans[0].config.engine
        opening = asyncio.create_task(open_images(config, engine, checkpoint.path, spec, self.stack))
        self.stack.callback(opening.cancel)
        tokenizing = asyncio.create_task(asyncio.to_thread(load), name="tokenizer")
        self.stack.callback(tokenizing.cancel)
        metrics = RouterMetrics()
        name = config.served_model_name or checkpoint.name
        defaults = sampling_defaults(config.frontend.generation_config, checkpoint.path)
        feed = await self._kv_events(name)
        registry = await self._workers(cluster, plans, metrics, feed)
        tracing = self._tracing(name)
        on_end = tracing if feed is None else feed.before(tracing)
        dispatcher = ClusterDispatcher(config, registry, metrics, on_end=on_end)
        board = FaultBoard(dispatcher.poison_requests, registry, cluster.ask)
        in_background(self.stack, board.run(), "faults")
        drainer = WorkerDrainer(registry, dispatcher.migrate_from, needs_roles=config.mode is Mode.DISAGG)
        in_background(self.stack, drainer.follow(), "drains of other routers")
        in_background(self.stack, self._roll(registry, drainer, cluster).run(), "roll")
        await self._ready(cluster, registry)
        adapters = await self._adapters(registry, cluster, name)
        images, no_images = await opening
        scaling = begin_scaling(config, cluster, registry, drainer, dispatcher, metrics, self.stack)
        tokenizer = await tokenizing
        override = RerankerOverrides.of(config.hf_overrides)
        model = ServedModel(
            name=name,
            path=checkpoint.path,
            mode=config.mode.value,
            max_model_len=min(session.info.max_model_len for session in registry.computing()),
            vocab_size=spec.vocab_size,
            impl=spec.impl,
            eos_token_ids=spec.eos_token_ids,
            has_states=spec.recurrent is not None,
            sampling_defaults=defaults,
            shape=served_shape(engine, spec),
            numerics=engine.numerics,
            no_images=no_images,
            pooling=engine.pooling,
            pairs=PairForm.load(checkpoint.path, tokenizer, override, template),
        )
        if config.uses_handoffs and not cluster.found_workers:
            await self._check_links(registry, dispatcher)
        await self.stack.enter_async_context(
            WorkerProbe(
                registry,
                dispatcher.attempt,
                dispatcher.able,
                interval_s=config.failover.probe_interval,
                timeout_s=config.failover.probe_timeout,
                is_paused=lambda: dispatcher.gate.mode is not None,
            )
        )
        history = History(config.operation.explain_requests)
        formats = tokenizer.output_formats.chosen(
            config.frontend.tool_call_parser.value, config.frontend.reasoning_parser.value
        )
        how, shared, limits = config.access.update_mode, weights_record(cluster.ask), limits_of(config)
        generation = Generation(model, tokenizer, dispatcher, limits, formats, history, adapters, images)
        generation.weights = WeightUpdates(registry, dispatcher, generation.abort_all, how, shared)
        await generation.weights.begin()
        in_background(self.stack, generation.weights.run(), "weights")
        generation.records = open_records(
            config.operation.record_requests, config.operation.record_requests_mb, self.stack
        )
        self.stack.push_async_callback(generation.close)
        await self._say_workers(registry)
        return ModelService(
            config, cluster, registry, dispatcher, drainer, scaling, generation, history, metrics, engine
        )

    async def _adapters(self, registry: Registry, cluster: Cluster, model: str) -> ServedAdapters | None:
        """None if the workers take none. Adapters that other routers have loaded are there already."""
        if not any(session.info.max_loras for session in registry.sessions()):
            return None
        adapters = ServedAdapters(registry, adapter_record(cluster.ask), model)
        await adapters.turn()
        in_background(self.stack, adapters.run(), "adapters")
        for name, path in adapters_of(self.config.adapters.lora_modules).items():
            try:
                await adapters.load(name, path, in_place=True)
            except RouterError as error:
                raise NotReady(f"--lora-modules: {error}") from error
        return adapters

    def _tracing(self, model: str) -> OnEnd:
        endpoint = self.config.operation.otlp_traces_endpoint
        if endpoint is None:
            return lambda _sequence, _outcome, _at: None
        return self.stack.enter_context(TraceExporter(endpoint, model)).ended

    async def _kv_events(self, model: str) -> KVEventFeed | None:
        if self.config.operation.kv_events is None:
            return None
        with taking("--kv-events or --kv-events-replay"):
            return await self.stack.enter_async_context(kv_event_feed(self.config.operation, model))

    async def _workers(
        self, cluster: Cluster, plans: list[WorkerPlan], metrics: RouterMetrics, feed: KVEventFeed | None
    ) -> Registry:
        """Connect to all workers, and start those that there are not. Raises ClusterError."""

        def on_change(member: Member, up: bool) -> None:
            if feed is not None:
                feed.worker_changed(member, up)
            metrics.workers.changed(member.handle.worker_id, member.role_name, up=up)
            if up:
                self.display.done(member.handle.worker_id, "ready")

        with self.display.stage("room for workers"):
            handles = await cluster.place(plans, on_wait=self.display.waiting)
            if not cluster.found_workers:
                for handle in handles:
                    self.display.show(handle.worker_id, "starting a process, importing torch")
            # A local Ray has one node, and the router cannot outlive it.
            fencing = None if self.connection.is_local else Fencing(self.connection.dead_nodes, cluster)
            if fencing is not None:
                await self.stack.enter_async_context(fencing)
            registry = await self.stack.enter_async_context(
                Registry(
                    handles,
                    on_change,
                    silence_s=self.config.failover.worker_timeout,
                    grace_s=self.config.failover.worker_grace,
                    fencing=fencing,
                    digests={
                        handle.worker_id: cluster.settings_digest(handle.worker_id) for handle in handles
                    },
                    name=self.router_name,
                    has_ray=lambda: self.connection.answers,
                )
            )
            cluster.leads = lambda: registry.leads
        return registry

    async def _ready(self, cluster: Cluster, registry: Registry) -> None:
        """Wait until all workers are ready, or any if they ran before. Raises NotReady, WorkerBroken."""
        patience = self.config.cluster.startup_timeout
        with self.display.stage("workers"):
            look = partial(self._show_loading, registry, cluster.workers)
            watch = supervised(repeat(look, _WATCH_S, _log, "workers do not tell their progress"), "loading")
            try:
                if cluster.found_workers:
                    await registry.wait_until(registry.all_ready, _FOUND_S)
                    ready = await registry.wait_for_any(patience)
                else:
                    ready = await registry.wait_for_all(patience)
            finally:
                watch.cancel()
            if not ready:
                raise NotReady(
                    f"not all workers were ready within --startup-timeout {patience:g} s: "
                    + "; ".join(registry.complaints())
                )
        if cluster.found_workers:
            ids = ", ".join(session.worker_id for session in registry.sessions())
            self.display.say(f"found workers of --cluster-name {self.config.cluster.cluster_name}: {ids}")
            for complaint in registry.complaints():
                _log.warning("not ready yet: %s", complaint)
            return
        for worker in cluster.workers:
            self.display.say(_started(worker))

    def _roll(self, registry: Registry, drainer: WorkerDrainer, cluster: Cluster) -> Roll:
        return Roll(
            registry,
            drainer,
            cluster,
            drain_timeout_s=self.config.operation.drain_timeout,
            startup_timeout_s=self.config.cluster.startup_timeout,
        )

    async def _check_links(self, registry: Registry, dispatcher: ClusterDispatcher) -> None:
        """Raises LinkBroken."""
        patience = self.config.cluster.startup_timeout
        with self.display.stage("links"):
            links = await check_links(registry, dispatcher.attempt, dispatcher.able, timeout_s=patience)
        for link in links:
            self.display.say(str(link))
        if not links:
            self.display.say("no KV link was measured: no worker of one of the roles is ready")

    async def _show_loading(self, registry: Registry, workers: Sequence[RayWorker]) -> None:
        """The progress of each worker that is not ready."""
        ready = {session.worker_id for session in registry.sessions()}
        for worker in workers:
            state = None if worker.worker_id in ready else await worker.progress()
            if state is not None:
                self.display.loading(worker.worker_id, *state)

    async def _say_workers(self, registry: Registry) -> None:
        """Where they run, and their sizes."""
        workers = [(session.worker_id, session.info.node) for session in registry.sessions()]
        self.display.say(f"workers: {workers_by_node(workers, await self.connection.nodes())}")
        for line in sizes(session.info for session in registry.sessions()):
            self.display.say(line)


def _started(worker: RayWorker) -> str:
    """What its start consisted of; a restarted worker's last start."""
    parts = ", ".join(f"{stage[:1].lower()}{stage[1:]} {took:.1f} s" for stage, took in worker.stages)
    return f"{worker.worker_id} started in {sum(took for _, took in worker.stages):.1f} s: {parts}"


def sizes(workers: Iterable[worker_pb2.WorkerInfo]) -> list[str]:
    """One line per group of workers with equal settings."""
    groups: dict[str, list[str]] = {}
    for info in workers:
        groups.setdefault(info.settings, []).append(info.worker_id)
    return [f"{_names(names)}: {text}" for text, names in groups.items()]


_MOST_NAMES: Final = 4


def _names(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} workers from {names[0]} on"


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
        on_gone=metrics.workers.gone,
    )
    for role in scaling.roles:
        metrics.workers.watch(role.value, partial(scaling.desired, role), partial(scaling.ready, role))
    in_background(stack, scaling.run(), "scaling")
    if bounds:
        load = LoadReader(
            config,
            registry,
            dispatcher.prefill_queue,
            metrics.recent,
            lambda: dispatcher.running,
            dispatcher.lone_decode_s,
        )
        autoscaler = Autoscaler(config, scaling, load.read, lambda: registry.leads)
        in_background(stack, autoscaler.run(), "autoscaler")
    return scaling
