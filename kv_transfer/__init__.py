"""KV transfer: moves the KV of a prompt from one worker's pool to another's, verified by digests."""

from kv_transfer.errors import LayoutMismatch, TransferError
from kv_transfer.handoff.endpoint import KVEndpoint
from kv_transfer.handoff.events import (
    CaughtUp,
    Drained,
    EndpointEvent,
    HandedOff,
    PushSpan,
    Ready,
    ReceiveFailed,
    ReceiverEvent,
    Reopened,
    Reserved,
    SenderEvent,
    SendFailed,
)
from kv_transfer.handoff.port import KVPort
from kv_transfer.integrity.digest import request_digest
from kv_transfer.layout import KVLayout
from kv_transfer.memory import PoolMemory
from kv_transfer.ticket import HandoffState, Peer, Ticket
from kv_transfer.transfer_thread import ReceiverCommands, SenderCommands, TransferThread

__all__ = [
    "CaughtUp",
    "Drained",
    "EndpointEvent",
    "HandedOff",
    "HandoffState",
    "KVEndpoint",
    "KVLayout",
    "KVPort",
    "LayoutMismatch",
    "Peer",
    "PoolMemory",
    "PushSpan",
    "Ready",
    "ReceiveFailed",
    "ReceiverCommands",
    "ReceiverEvent",
    "Reopened",
    "Reserved",
    "SendFailed",
    "SenderCommands",
    "SenderEvent",
    "Ticket",
    "TransferError",
    "TransferThread",
    "request_digest",
]
