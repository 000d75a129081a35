"""A prefill worker: an engine and a sender."""

from __future__ import annotations

from kv_transfer import KVSender, SenderEvent, SenderThread
from prefill_worker.prefill_role import PrefillRole
from worker.assembly import Assembled, Parts
from worker.kv_endpoint import open_endpoint

__all__ = ["assemble"]


def assemble(parts: Parts) -> Assembled:
    """Raises what opening the transport raises."""
    endpoint = open_endpoint(parts)
    sender = SenderThread(
        KVSender(
            endpoint.transport,
            endpoint.memory,
            endpoint.layout,
            endpoint.epoch,
            digester=endpoint.digester,
        ),
        on_event=lambda event: parts.inbox.post(deliver, event),
        on_fatal=parts.inbox.fail,
    )
    role = PrefillRole(
        parts.engine, parts.outbox, parts.metrics, parts.clock, sender, parts.config.handoff_timeout_s
    )

    def deliver(event: SenderEvent) -> None:
        role.on_transfer(event)

    return Assembled(role, sender)
