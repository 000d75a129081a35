"""One worker: the engine thread, the transfer thread, the gRPC server and the metrics endpoint.

Independent of Ray: the actors are thin wrappers, and tests run hosts in their own process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial

import grpc
import torch
from prometheus_client import CollectorRegistry

from common.garbage_collection import tune_gc
from common.kv_groups import window_shares
from common.metric_export import MetricSource, exported
from common.ports import bind_within
from common.progress import Progress, silent
from common.version import build
from encode_worker.rows_service import register as register_rows
from engine.device.memory import total_bytes
from engine.executor.build import build_runner
from engine.kernels.compilations import COMPILATIONS
from engine.loop.engine import Engine
from engine.loop.warmup import warm_up, warmup_plan_for
from engine.modeling.loader.checkpoint import local_copy
from engine.parallel import SINGLE_RANK, Communicator, RendezvousServer
from rpc.baton.v1 import worker_pb2, worker_pb2_grpc
from rpc.server import GrpcServer, Register
from rpc.tls import Identity
from worker.adapters.files_service import register as register_adapters
from worker.assembly import Assemble, assemble
from worker.config import WorkerConfig, WorkerRole
from worker.kv_tiers import open_tiers
from worker.network import is_loopback
from worker.parts import Parts
from worker.process.batch_log import BatchLog, PaceLog
from worker.process.engine_loop import EngineDied, EngineLoop
from worker.process.metrics_server import start_metrics_server
from worker.process.router_watch import RouterWatch
from worker.process.service import WorkerService
from worker.process.settings_line import settings_line
from worker.process.watchdog import Watchdog
from worker.request_handler import RequestHandler
from worker.session.convert import peer_to_proto
from worker.session.metrics import WorkerMetrics
from worker.tensor_parallel.rank_processes import RankProcesses

log = logging.getLogger(__name__)

_SERVICE = "baton.v1.Worker"
_ROWS, _ADAPTERS = "baton.v1.Rows", "baton.v1.AdapterFiles"
_SCRAPE_PATIENCE_S = 2.0
_IDLE_S = 0.1
"""Interval of looking whether a drained worker has requests."""


class WorkerHost:
    """`start`, serve, `stop`; once each. All methods belong to one asyncio loop."""

    def __init__(
        self,
        config: WorkerConfig,
        assemble: Assemble = assemble,
        *,
        on_death: Callable[[EngineDied], None],
        progress: Progress = silent,
        rank_processes: RankProcesses | None = None,
        is_reachable: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """`is_reachable`: whether a router could find this worker; None: only the router that started it.
        `on_death`: called on the asyncio loop when the engine has failed, after health and sessions have
        reported it; the process should exit and be restarted. `rank_processes` runs the other ranks of a
        worker that has several. Raises ValueError if other machines could connect without a certificate.
        """
        self.config = config
        self.address = ""
        """host:port of the gRPC server, once started."""
        if config.router_certificate is None and not is_loopback(config.host):
            raise ValueError(f"{config.worker_id} would accept unauthenticated connections on {config.host}")
        if (rank_processes is None) != (config.engine.tensor_parallel_size == 1):
            raise ValueError(
                f"{config.worker_id}: rank_processes must be given exactly if there are several ranks"
            )
        self._rank_processes = rank_processes
        self._identity = Identity.generate() if config.router_certificate is not None else None
        self._assemble = assemble
        self._on_death = on_death
        self._progress = progress
        self._router_watch = RouterWatch(
            config.router_timeout_s,
            lambda reason: self._on_engine_death(EngineDied(reason)),
            is_reachable or _is_not_reachable,
        )
        self._ports = None if config.ports is None else config.ports.halves()[0]
        self._peer_server: GrpcServer | None = None
        """For other workers."""
        self._running = ExitStack()
        """Cleanup of `start`, in reverse order."""

    @property
    def certificate(self) -> bytes | None:
        """PEM; identifies this incarnation. None: plaintext."""
        return None if self._identity is None else self._identity.certificate

    async def start(self) -> worker_pb2.WorkerInfo:
        """Load the model and serve. Raises what loading raises, after stopping everything it started."""
        self._asyncio = asyncio.get_running_loop()
        try:
            # In a temporary thread: OpenMP counts the helper threads of every thread that computed, and once
            # there are more than cores, the engine thread's helpers sleep after each operation.
            with ThreadPoolExecutor(1, thread_name_prefix="loading") as loader:
                self._parts, self._handler = await self._asyncio.run_in_executor(loader, self._build)
            tune_gc()
            info = self._run_threads()
            await self._serve(info)
            if self._rank_processes is not None:
                self._rank_processes.end.add_done_callback(self._on_rank_end)
        except BaseException:
            await asyncio.to_thread(self._running.close)
            raise
        COMPILATIONS.serve()
        self._parts.metrics.ready.set(1)
        log.info("%s serves on %s", self.config.worker_id, self.address)
        return info

    @property
    def routers(self) -> list[str]:
        """The names of the connected routers."""
        return self._service.routers

    async def drain(self, seconds: float) -> bool:
        """Have all routers take their requests away; returns whether none is left, after `seconds` at most.

        Raises EngineDied.
        """
        self._parts.inbox.post(self._handler.drain, seconds)
        ends = time.monotonic() + seconds
        while not await asyncio.wrap_future(self._parts.inbox.ask(lambda: self._handler.idle)):
            if time.monotonic() >= ends:
                return False
            await asyncio.sleep(_IDLE_S)
        return True

    async def stop(self) -> None:
        """Close all sessions and stop all threads. Remaining requests are aborted."""
        await self._server.stop()
        if self._peer_server is not None:
            await self._peer_server.stop()
        self._router_watch.stop()
        await asyncio.to_thread(self._running.close)

    def _build(self) -> tuple[Parts, RequestHandler]:
        config = self.config = self._for_this_machine()
        runner, drafts = build_runner(config.engine, self._progress, self._form_group)
        engine = Engine(config.engine, runner=runner, drafts=drafts)
        parts = Parts(
            config=config,
            epoch=secrets.randbits(64),
            engine=engine,
            runner=runner,
            metrics=WorkerMetrics(),
        )
        self._running.callback(engine.close)
        if config.tiers is not None:
            self._progress("Opening the KV tiers", 0, 0)
            self._running.callback(open_tiers(parts, config.tiers).stop)
        if config.transport is not None:
            self._progress("Opening the KV transport", 0, 0)
        handler = engine.hooks = self._assemble(parts)
        self._running.callback(handler.grammars.stop)
        self._running.callback(handler.adapters.stop)
        if handler.images is not None:
            self._running.callback(handler.images.stop)
        # Not before: until the handler is assembled, other ranks wait for their KV ports and not for steps.
        self._progress("Warming up", 0, 0)
        warm_up(runner, config.engine, warmup_plan_for(config.engine), drafts)
        self._progress("Reading the vocabulary", 0, 0)
        engine.grammars.load()  # holds the interpreter lock: not while requests are computed
        return parts, handler

    def _for_this_machine(self) -> WorkerConfig:
        """With the model's folder here, and the sizes for this GPU."""
        config = self.config
        path = local_copy(config.source, config.engine.model_path, self._progress)
        engine = replace(config.engine, model_path=path)
        if engine.device != "cpu":
            engine = config.sizes.on(engine, total_bytes(engine.device))
        return replace(config, engine=engine)

    def _form_group(self) -> Communicator:
        """Start the other ranks and wait for them to connect."""
        rank_processes, config = self._rank_processes, self.config
        if rank_processes is None:
            return SINGLE_RANK
        rendezvous = RendezvousServer(config.engine.tensor_parallel_size)
        self._running.callback(rank_processes.stop)
        rank_processes.start(config, rendezvous.place)
        return rendezvous.join_as_first_rank(
            torch.device(config.engine.device),
            timeout_s=config.step_timeout_s,
            failure=rank_processes.trouble,
        )

    def _run_threads(self) -> worker_pb2.WorkerInfo:
        parts, transfer = self._parts, self._handler.transfer
        loop = EngineLoop(
            parts.engine,
            self._handler,
            parts.inbox,
            parts.outbox,
            parts.metrics,
            clock=parts.clock,
            on_death=self._on_engine_death,
            batch_log=self._batch_log(),
        )
        if transfer is not None:
            transfer.start()
            self._running.callback(transfer.stop)
        loop.start()
        self._running.callback(loop.stop)
        watchdog = Watchdog(loop, self.config.step_timeout_s, self._on_engine_death)
        watchdog.start()
        self._running.callback(watchdog.stop)
        server, thread = bind_within(
            self._ports,
            lambda port: start_metrics_server(self.config.host, port, self._exported_metrics()),
        )
        self._running.callback(thread.join)
        self._running.callback(server.server_close)
        self._running.callback(server.shutdown)
        lora = self.config.engine.lora
        parts.metrics.watch(
            self._stats,
            max_running=self.config.engine.scheduler.max_running_requests,
            max_loras=0 if lora is None else lora.max_loras,
        )
        return self._describe(metrics_port=server.server_port)

    def _exported_metrics(self) -> CollectorRegistry:
        config = self.config
        labels = {
            "role": config.role.value,
            "mode": config.mode,
            "worker": config.worker_id,
            "model_name": config.model,
        }
        return exported([MetricSource(self._parts.metrics.registry, labels)], config.metric_names)

    def _batch_log(self) -> BatchLog:
        engine = self.config.engine
        target, chunk = engine.scheduler.step_target_s, engine.scheduler.chunk_budget
        pace = None if target is None or chunk is None else PaceLog(chunk, target)
        return BatchLog(self.config.decode_log_interval, engine.page_size, pace)

    async def _serve(self, info: worker_pb2.WorkerInfo) -> None:
        self._service = WorkerService(
            self._parts.inbox, self._handler, info, self._parts.clock, self._router_watch
        )
        self._server = GrpcServer({_SERVICE: partial(_register, self._service)})
        await self._serve_peers(info)
        credentials = self._credentials()
        port = bind_within(self._ports, lambda port: self._server.bind(self.config.host, port, credentials))
        await self._server.start()
        self.address = f"{self.config.host}:{port}"
        self._server.set_serving(True)
        self._router_watch.start()

    async def _serve_peers(self, info: worker_pb2.WorkerInfo) -> None:
        """Let other workers fetch rows of images, if this one may encode them, and adapters."""
        images, adapters = self._handler.images, self._handler.adapters
        services: dict[str, Register] = {}
        if self.config.role is WorkerRole.ENCODE and images is not None and images.handouts is not None:
            services[_ROWS] = partial(register_rows, images.handouts)
        if self.config.engine.lora is not None:
            services[_ADAPTERS] = partial(register_adapters, adapters.key, adapters.files)
        if not services:
            return
        server = self._peer_server = GrpcServer(services)
        credentials = None if self._identity is None else self._identity.serve_all()
        port = bind_within(self._ports, lambda port: server.bind(self.config.host, port, credentials))
        await server.start()
        server.set_serving(True)
        address, info.certificate = f"{self.config.host}:{port}", self.certificate or b""
        info.rows_address = address if _ROWS in services else ""
        if _ADAPTERS in services:
            info.adapters_address, info.adapters_key = address, adapters.key

    def _credentials(self) -> grpc.ServerCredentials | None:
        router = self.config.router_certificate
        return None if self._identity is None or router is None else self._identity.serve(router)

    def _on_engine_death(self, death: EngineDied) -> None:
        """On the engine thread, or the watchdog's."""
        self._parts.metrics.ready.set(0)
        asyncio.run_coroutine_threadsafe(self._report_death(death), self._asyncio)

    def _on_rank_end(self, end: Future[str]) -> None:
        """A rank has ended, so the worker must. May be called on any thread."""
        if not end.cancelled():
            self._on_engine_death(EngineDied(end.result()))

    async def _report_death(self, death: EngineDied) -> None:
        self._server.set_serving(False)
        self._on_death(death)

    def _stats(self) -> worker_pb2.WorkerStats | None:
        """For a scrape, on its own thread."""
        try:
            return self._parts.inbox.ask(self._handler.stats).result(_SCRAPE_PATIENCE_S)
        except (EngineDied, NoAnswer):
            return None

    def _describe(self, metrics_port: int) -> worker_pb2.WorkerInfo:
        config, engine, transfer = self.config, self._parts.engine, self._handler.transfer
        info = worker_pb2.WorkerInfo(
            worker_id=config.worker_id,
            role=_ROLES[config.role],
            epoch=self._parts.epoch,
            model=config.model,
            page_size=config.engine.page_size,
            num_pages=engine.kv.pool.num_pages,
            max_model_len=engine.max_tokens,
            device=config.engine.device,
            dtype=config.engine.dtype,
            transport=config.transport or "",
            chunked_prefill_size=config.engine.scheduler.largest_chunk(engine.max_tokens) or 0,
            max_running_requests=engine.max_running,
            page_bytes=self._parts.runner.kv.page_bytes * config.engine.tensor_parallel_size,
            ranks=config.engine.tensor_parallel_size,
            most_blocks=engine.kv.needs.of_request.most_blocks,
            windows=[
                worker_pb2.Window(tokens=tokens, share=share)
                for tokens, share in window_shares(engine.kv.needs.groups)
            ],
            step_target_s=config.engine.scheduler.step_target_s or 0.0,
            pause_target_s=config.engine.scheduler.pause_s or 0.0,
            cuda_graph_max_bs=config.engine.cuda_graph_max_batch,
            cuda_graph_max_tokens=config.engine.cuda_graph_max_tokens,
            pid=os.getpid(),
            metrics_address=f"{config.host}:{metrics_port}",
            node=config.node,
            settings=settings_line(
                config.engine,
                pool_tokens=engine.kv.needs.of_request.tokens_in(engine.kv.pool.num_pages, engine.max_tokens),
                context=engine.max_tokens,
                free_bytes=_free_memory(config.engine.device),
            ),
            build=build(),
            predecessor=config.predecessor,
            settings_digest=config.settings_digest,
            **({} if config.engine.lora is None else asdict(config.engine.lora)),
            shares_prefixes=transfer is not None and engine.kv.cache.enabled,
        )
        log.info(info.settings)
        if transfer is not None:
            info.peer.CopyFrom(peer_to_proto(transfer.peer))
            info.layout_hash = transfer.peer.layout_hash
        if transfer is not None or config.identify_weights:
            info.weights = str(engine.weights)
        return info


async def _is_not_reachable() -> bool:
    return False


def _free_memory(device: str) -> int | None:
    return torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else None


def _register(service: WorkerService, server: grpc.aio.Server) -> None:
    worker_pb2_grpc.add_WorkerServicer_to_server(service, server)  # type: ignore[no-untyped-call]


_ROLES = {
    WorkerRole.PREFILL: worker_pb2.ROLE_PREFILL,
    WorkerRole.DECODE: worker_pb2.ROLE_DECODE,
    WorkerRole.ENCODE: worker_pb2.ROLE_ENCODE,
}
