"""Configuration of a worker; the router fills in every field and validates it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from common.metric_export import MetricNames
from common.ports import PortRange
from engine.config import EngineConfig
from engine.device.sizes_by_memory import SizesByMemory


class WorkerRole(Enum):
    PREFILL = "prefill"
    DECODE = "decode"
    ENCODE = "encode"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig:
    """Memory below the KV pool."""

    host_bytes: int
    """Host memory, pinned on a machine with a GPU."""
    disk_dir: Path | None = None
    """Folder of all workers of the node: each has a subfolder."""
    object_url: str | None = None
    """Instead of a disk: a bucket that all workers share, see `ObjectUrl`."""
    second_tier_bytes: int = 0
    """Budget of files, or of objects, that a worker keeps account of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    worker_id: str
    """Unique in the cluster and stable over restarts, such as "decode-0"."""
    role: WorkerRole
    model: str
    """Model name reported by Describe; the weights are at `engine.model_path`."""
    engine: EngineConfig
    sizes: SizesByMemory = field(default_factory=SizesByMemory)
    """Sizes in `engine` that the worker replaces by what suits its own GPU."""
    source: str = ""
    """Value of --model, which a machine without a folder at `engine.model_path` resolves itself."""
    tiers: TierConfig | None = None
    transport: str | None = None
    """"nixl", "ucxx" or "loopback"; None without KV transfer."""
    kv_by_ranks: bool = False
    """Whether a worker of the cluster has several ranks, so that KV is transferred from rank to rank."""
    identify_weights: bool = False
    """Compute the digest of the weights at the start also without KV transfer."""
    host: str = "127.0.0.1"
    """Address on which this worker listens, and under which routers and other workers reach it. Empty: Ray's
    address of its node."""
    network: str | None = None
    """Such as "10.1.0.0/16": listen on this machine's address in that network instead of on `host`."""
    ports: PortRange | None = None
    """Ports to listen on; None: any free ones."""
    node: str = ""
    """Ray's id of its node, set by the worker itself; empty without Ray."""
    predecessor: str = ""
    """How the worker's previous process on this node ended, set by the worker itself; empty: not known."""
    settings_digest: str = ""
    """Digest of everything that the router decides about the worker: a router takes a worker over as it is
    only if its own plan has the same digest.
    """
    router_certificate: bytes | None = None
    """PEM. Only the holder of its key may connect. None: no authentication, allowed on loopback only."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that each rank's process sets before it imports torch, whose libraries read them then."""
    mode: str = "mixed"
    """Mode of the cluster; a label of this worker's metrics."""
    metric_names: MetricNames = MetricNames.BATON
    log_format: str = "text"
    """"text" or "json"."""
    decode_log_interval: int = 40
    """Decode steps between two `Decode batch` lines; 0: no batch lines."""
    handoff_timeout_s: float = 60.0
    """A handoff without progress for this long is aborted."""
    step_timeout_s: float = 300.0
    """End the worker when an engine step takes longer than this."""
    router_timeout_s: float = 60.0
    """End the worker when it has had no session of a router for this long, unless Ray still answers it."""

    def __post_init__(self) -> None:
        if self.role is WorkerRole.PREFILL and self.transport is None:
            raise ValueError(f"{self.worker_id}: a prefill worker needs a KV transport")
