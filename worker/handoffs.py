"""A worker's KV endpoint, and all that moves KV through it."""

from __future__ import annotations

from dataclasses import dataclass

from decode_worker.incoming import IncomingHandoffs
from decode_worker.pulled_prefixes import PulledPrefixes
from engine.core.request import RequestId
from kv_transfer import CaughtUp, HandedOff, ReceiverEvent, SenderEvent, SendFailed
from kv_transfer.transfer_thread import TransferThread
from prefill_worker.migrations import Migrations
from prefill_worker.outgoing import OutgoingHandoffs
from prefill_worker.shared_prefixes import SharedPrefixes


@dataclass(frozen=True, slots=True)
class Handoffs:
    """In both directions, of requests and of cached prefixes."""

    transfer: TransferThread
    outgoing: OutgoingHandoffs
    migrations: Migrations
    incoming: IncomingHandoffs
    shared: SharedPrefixes
    pulled: PulledPrefixes
    transport: str = ""
    """Name of the KV transport, with which the pool is registered."""

    @property
    def are_sending(self) -> bool:
        """Whether the sender may read pages."""
        return bool(self.outgoing or self.migrations or self.shared)

    def tick(self, now: float) -> None:
        """Before every step."""
        self.incoming.tick(now)
        self.outgoing.tick(now)
        self.migrations.tick(now)
        self.shared.tick(now)
        self.pulled.tick(now)

    def next_wakeup(self) -> float:
        """Time of the next timeout; math.inf: none."""
        return min(part.next_wakeup() for part in (self.incoming, self.migrations, self.shared, self.pulled))

    def on_step(self) -> None:
        """A step has ended."""
        self.outgoing.on_step()
        self.migrations.on_step()
        self.shared.on_step()

    def drop(self, request_id: RequestId) -> bool:
        """Abort what moves for a request. False if the engine alone has it."""
        return any(part.drop(request_id) for part in (self.outgoing, self.incoming, self.pulled))

    def on_transfer(self, event: SenderEvent | ReceiverEvent) -> None:
        if isinstance(event, CaughtUp | HandedOff | SendFailed):
            senders = (self.migrations, self.shared)
            owner = next((part for part in senders if event.handoff_id in part), self.outgoing)
            owner.on_transfer(event)
        else:
            (self.pulled if event.handoff_id in self.pulled else self.incoming).on_transfer(event)
