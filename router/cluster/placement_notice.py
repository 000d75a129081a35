"""Logs that workers are placed unevenly, as after a lost node has returned: Ray does not move them back."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from router.cluster.nodes import Node

_log = logging.getLogger(__name__)


def uneven(node_ids: Iterable[str], known: Sequence[Node], *, with_gpus: bool) -> str:
    """One line if a node has no worker while another has several; otherwise empty.

    `node_ids`: that of each worker. `with_gpus`: workers run only on nodes with GPUs.
    """
    count = Counter(node_ids)
    usable = [node for node in known if node.alive and (node.has_gpu or not with_gpus)]
    idle = [node.name for node in usable if not count[node.id]]
    shared = [node.name for node in usable if count[node.id] > 1]
    if not idle or not shared:
        return ""
    return (
        f"no worker on {', '.join(idle)}, and several on {', '.join(shared)}: workers stay where they are"
        " until the router is restarted"
    )


class PlacementNotice:
    """Logs when the placement becomes uneven. Call it with the nodes, from time to time."""

    def __init__(self, node_ids: Callable[[], Iterable[str]], *, with_gpus: bool) -> None:
        self._node_ids = node_ids
        self._with_gpus = with_gpus
        self._last = ""

    def __call__(self, known: Sequence[Node]) -> None:
        now = uneven(self._node_ids(), known, with_gpus=self._with_gpus)
        if now and now != self._last:
            _log.warning("%s", now)
        self._last = now
