"""Builds a worker's request handler and, with a KV transport, its KV port and handoffs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TypeAlias

from decode_worker.incoming import IncomingHandoffs
from decode_worker.pulled_prefixes import PulledPrefixes
from engine.device.compute_threads import compute_threads
from engine.kernels.compilations import COMPILATIONS
from kv_transfer import EndpointEvent, KVEndpoint, KVPort, TransferThread
from kv_transfer.transports import Transport
from prefill_worker.migrations import Migrations
from prefill_worker.outgoing import OutgoingHandoffs
from prefill_worker.page_sender import PageSender
from prefill_worker.shared_prefixes import SharedPrefixes
from worker.adapters.loading import AdapterLoading
from worker.grammar_loading import GrammarLoading
from worker.handoffs import Handoffs
from worker.images import WorkerImages
from worker.kv_pool_access import (
    REOPENABLE,
    digester_of,
    layout_of,
    memory_of,
    open_transport,
    worker_name,
)
from worker.parts import Parts
from worker.request_handler import RequestHandler
from worker.session.answers import Answers
from worker.session.handoff_reports import HandoffReports
from worker.tensor_parallel.rank_kv import open_ranks

Assemble: TypeAlias = Callable[[Parts], RequestHandler]


def assemble(parts: Parts) -> RequestHandler:
    """The request handler of a worker; with handoffs if its configuration names a KV transport.

    Raises what opening the transport raises.
    """
    parts.engine.kv.cache.keep_journal()
    answers = Answers(parts.outbox, parts.metrics)
    grammars = GrammarLoading(parts.engine.grammars, parts.inbox)
    adapters = AdapterLoading(parts.engine.adapters, parts.inbox, parts.metrics)
    parts.metrics.watch_grammars(parts.engine.grammars)
    parts.metrics.watch_compilations(COMPILATIONS)
    parts.metrics.watch_experts(lambda: parts.runner.expert_load.imbalance)
    if parts.config.engine.device == "cpu":
        parts.metrics.watch_threads(lambda: compute_threads().threads)
    images = WorkerImages(parts, answers)
    build = partial(
        RequestHandler,
        parts.engine,
        answers,
        parts.clock,
        grammars,
        adapters,
        images=images,
    )
    if parts.config.transport is None:
        return build(identified=parts.config.identify_weights)

    def on_event(event: EndpointEvent) -> None:
        parts.inbox.post(handler.on_transfer, event)

    transfer = TransferThread(KVEndpoint(open_port(parts)), on_event, on_fatal=parts.inbox.fail)
    handoffs = _handoffs(parts, answers, transfer)
    handler = build(handoffs)
    return handler


def _handoffs(parts: Parts, answers: Answers, transfer: TransferThread) -> Handoffs:
    engine, clock, reports = parts.engine, parts.clock, HandoffReports(answers)
    sender = PageSender(transfer.sender, reports, engine, parts.config.handoff_timeout_s)
    return Handoffs(
        transfer,
        OutgoingHandoffs(engine, reports, clock, sender),
        Migrations(engine, reports, clock, sender),
        IncomingHandoffs(engine, reports, transfer.receiver),
        SharedPrefixes(engine, clock, transfer.sender),
        PulledPrefixes(engine, reports, clock, transfer.receiver),
        parts.config.transport or "",
    )


def open_port(parts: Parts) -> KVPort:
    """Register the pool with the configured transport, under a name unique to this incarnation.

    Raises UnknownTransport, and what opening the transport raises.
    """
    config, runner = parts.config, parts.runner
    sidecars = parts.engine.kv.sidecars
    if config.kv_by_ranks:
        return open_ranks(config, runner, parts.epoch, sidecars)
    memory, layout = memory_of(runner.kv), layout_of(runner)
    name = worker_name(config, parts.epoch)
    times = count(1)

    def reopen() -> Transport:
        return open_transport(config, f"{name}~{next(times)}", memory)

    return KVPort(
        open_transport(config, name, memory),
        memory,
        layout,
        parts.epoch,
        digester=digester_of(runner.kv, memory, layout),
        reopen=reopen if config.transport in REOPENABLE else None,
        sidecars=sidecars,
    )
