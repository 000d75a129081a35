"""What a worker is told at its start; complete and validated by the router."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from common.ports import PortRange
from engine.config import EngineConfig

__all__ = ["WorkerConfig", "WorkerRole"]


class WorkerRole(Enum):
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    worker_id: str
    """Unique in the cluster and stable over restarts, such as "decode-0"."""
    role: WorkerRole
    model: str
    """Name of the model, for Describe; the weights are where `engine.model_path` says."""
    engine: EngineConfig
    source: str = ""
    """What --model said: by it a machine without a folder at `engine.model_path` finds the model itself."""
    transport: str | None = None
    """"nixl", "ucxx" or "loopback"; None where no KV moves between workers."""
    kv_by_ranks: bool = False
    """Some worker of the cluster has several ranks: all hand KV over from rank to rank."""
    host: str = "127.0.0.1"
    """Where this worker listens, and where routers and other workers reach it. Empty: the address that
    Ray knows the worker's node by, which only the worker can tell."""
    network: str | None = None
    """Such as "10.1.0.0/16": the worker listens on its own address there, instead of on `host`."""
    ports: PortRange | None = None
    """Where this worker listens; None: on any free ports."""
    node: str = ""
    """Ray's id of the node that it runs on, which only the worker can tell; empty where there is no Ray."""
    router_certificate: bytes | None = None
    """PEM. Only the holder of its key is served. None: whoever comes is, and that is on loopback only."""
    mode: str = "mixed"
    """Of the cluster; a label of this worker's metrics."""
    log_format: str = "text"
    """"text" or "json"."""
    decode_log_interval: int = 40
    """Decode steps between two `Decode batch` lines; 0: no batch lines."""
    handoff_timeout_s: float = 60.0
    """How long a handoff may make no progress; then its sender gives it up."""
    step_timeout_s: float = 300.0
    """An engine that is at one step for longer hangs, and ends its worker."""
    router_timeout_s: float = 60.0
    """A worker without a session of its router for longer ends itself."""

    def __post_init__(self) -> None:
        if self.role is WorkerRole.PREFILL and self.transport is None:
            raise ValueError(f"{self.worker_id}: a prefill worker needs a transport to hand its KV over")
