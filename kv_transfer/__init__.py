"""Hands the KV of a computed prompt from one worker's pool to another's, provably intact or not at all."""

from kv_transfer.errors import LayoutMismatch, TransferError
from kv_transfer.handoff.events import (
    Drained,
    HandedOver,
    PushSpan,
    Ready,
    ReceiveFailed,
    ReceiverEvent,
    Reserved,
    SenderEvent,
    SendFailed,
)
from kv_transfer.handoff.receiver import KVReceiver
from kv_transfer.handoff.sender import KVSender
from kv_transfer.integrity.digest import request_digest
from kv_transfer.layout import KVLayout
from kv_transfer.memory import PoolMemory
from kv_transfer.ticket import Final, Peer, Ticket
from kv_transfer.transfer_thread import ReceiverThread, SenderThread

__all__ = [
    "Drained",
    "Final",
    "HandedOver",
    "KVLayout",
    "KVReceiver",
    "KVSender",
    "LayoutMismatch",
    "Peer",
    "PoolMemory",
    "PushSpan",
    "Ready",
    "ReceiveFailed",
    "ReceiverEvent",
    "ReceiverThread",
    "Reserved",
    "SendFailed",
    "SenderEvent",
    "SenderThread",
    "Ticket",
    "TransferError",
    "request_digest",
]
