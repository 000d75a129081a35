"""A decode worker: an engine, and a receiver unless it prefills its requests itself."""

from __future__ import annotations

from decode_worker.decode_role import DecodeRole
from kv_transfer import KVReceiver, ReceiverEvent, ReceiverThread
from worker.assembly import Assembled, Parts, assemble_mixed
from worker.kv_endpoint import open_endpoint

__all__ = ["assemble"]


def assemble(parts: Parts) -> Assembled:
    """Raises what opening the transport raises."""
    if parts.config.transport is None:
        return assemble_mixed(parts)
    endpoint = open_endpoint(parts)
    receiver = ReceiverThread(
        KVReceiver(
            endpoint.transport,
            endpoint.memory,
            endpoint.layout,
            endpoint.epoch,
            digester=endpoint.digester,
            reopen=endpoint.reopen,
        ),
        on_event=lambda event: parts.inbox.post(deliver, event),
        on_fatal=parts.inbox.fail,
    )
    role = DecodeRole(parts.engine, parts.outbox, parts.metrics, parts.clock, receiver)

    def deliver(event: ReceiverEvent) -> None:
        role.on_transfer(event)

    return Assembled(role, receiver)
