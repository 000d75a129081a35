"""How bytes get from one worker's pool to another's."""

from kv_transfer.transports.base import Transport
from kv_transfer.transports.loopback import LoopbackNetwork, LoopbackTransport

__all__ = ["LoopbackNetwork", "LoopbackTransport", "Transport"]
