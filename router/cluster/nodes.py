"""Lists the nodes of a Ray cluster, and detects the loss of Ray."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]

_log = logging.getLogger(__name__)

_ASK_S: Final = 2.0
_ANSWER_S: Final = 5.0
_ALIVE: Final = 0
"""GcsNodeInfo.ALIVE; the generated module is not imported, since its protobuf version is Ray's own."""
_OTHER_CLUSTER: Final = "WrongClusterID"
"""In the error of a GCS that was restarted at the same address."""
_RAYS_PATIENCE: Final = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Ray's setting of the time after which it ends a process that has lost its GCS."""
_RAYS_PATIENCE_S: Final = 60.0
"""Its default."""
_SPARE_S: Final = 35.0
"""Part of that time for streams to finish."""


class RayLost(Exception):
    """The Ray cluster that this router joined is gone; the message says how this was detected.

    A process cannot leave a Ray that does not answer and join another one, because its actors, object store
    and ids belong to the old one. The router exits instead, and a supervisor restarts it.
    """


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    hostname: str
    address: str
    alive: bool
    has_gpu: bool = False

    @property
    def name(self) -> str:
        return f"{self.hostname} ({self.address})"


AskNodes: TypeAlias = Callable[[], Awaitable[Sequence[Node]]]


def nodes() -> list[Node]:
    """Every node that Ray has had, including dead ones. Raises what Ray raises; blocks for at most 5 s.

    `ray.nodes()` is not used: after a restart of the head, another Ray answers at the same address, and
    `ray.nodes()` then aborts the process (SIGABRT).
    """
    entries = gcs().get_all_node_info(timeout=_ANSWER_S)
    return [
        Node(
            node_id.hex(),
            entry.node_manager_hostname,
            entry.node_manager_address,
            entry.state == _ALIVE,
            entry.resources_total.get("GPU", 0) >= 1,
        )
        for node_id, entry in entries.items()
    ]


def gcs() -> Any:
    """A client of the GCS of the Ray that this process has joined."""
    joined = ray.get_runtime_context()
    return _gcs_client(joined.gcs_address, joined.get_node_id())


@cache
def _gcs_client(address: str, node_id: str) -> Any:
    """The GCS client that Ray Serve uses too. It accepts answers of one cluster only.

    `node_id`, that of this process's node, differs between clusters.
    """
    return GcsClient(address=address)


def workers_by_node(workers: Iterable[tuple[str, str]], known: Sequence[Node]) -> str:
    """The placement of workers on nodes, in one line. `workers`: pairs of worker id and node id."""
    names = {node.id: node.name for node in known}
    by_node: dict[str, list[str]] = {}
    for worker, node in workers:
        by_node.setdefault(names.get(node, "an unknown node"), []).append(worker)
    return "; ".join(f"{', '.join(ids)} on {node}" for node, ids in by_node.items())


async def until_enough(
    ask: AskNodes, wanted: int, on_wait: Callable[[str], None], *, ask_s: float = _ASK_S
) -> None:
    """Wait until `wanted` nodes are alive; calls `on_wait` whenever their number changes."""
    before = None
    while (alive := sum(node.alive for node in await ask())) < wanted:
        if alive != before:
            on_wait(f"waiting for nodes: {alive} of {wanted} are alive")
        before = alive
        await asyncio.sleep(ask_s)


def patience_s() -> float:
    """How long Ray may be silent: its GCS may be started again, with the state that it keeps.

    Sessions with workers do without Ray meanwhile.
    """
    setting = float(os.environ.get(_RAYS_PATIENCE, _RAYS_PATIENCE_S))
    return max(setting - _SPARE_S, _ANSWER_S)


async def until_lost(
    ask: AskNodes,
    own: str,
    *,
    ask_s: float = _ASK_S,
    answer_s: float = _ANSWER_S,
    silence_s: float | None = None,
) -> RayLost:
    """Wait until Ray has ended, or is silent for `silence_s` (default: `patience_s()`); returns the reason.

    `own` is the id of this process's node.
    """
    silence_s = patience_s() if silence_s is None else silence_s
    heard = time.monotonic()
    while True:
        try:
            async with asyncio.timeout(answer_s):
                alive = {node.id for node in await ask() if node.alive}
        except Exception as error:  # Ray's errors share no base class
            silent = time.monotonic() - heard
            reason = str(error).partition("\n")[0] or type(error).__name__
            if _OTHER_CLUSTER in reason:
                return RayLost(
                    "another Ray answers at the address of the one that was joined: Ray was restarted"
                )
            _log.warning("Ray has not answered for %.0f s (%.0f at most): %s", silent, silence_s, reason)
            if silent > silence_s:
                return RayLost(f"Ray did not answer for {silent:.0f} s, at last with: {reason}")
        else:
            heard = time.monotonic()
            if own not in alive:
                return RayLost("this node is not part of the Ray cluster any more: Ray was restarted")
        await asyncio.sleep(ask_s)
