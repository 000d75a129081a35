"""Whether this process can be found through Ray."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]

_ANSWER_S: Final = 5.0


class RayContact:
    """Asks the GCS of the Ray in which this process is an actor."""

    def __init__(self) -> None:
        # Now: without the GCS, a new client waits for a minute.
        self._client: Any = GcsClient(address=ray.get_runtime_context().gcs_address)

    async def answers(self) -> bool:
        """Whether the GCS answers; a node that it has declared dead is ended by Ray itself."""
        try:
            await asyncio.to_thread(self._ask)
        except Exception:  # Ray's errors share no base class
            return False
        return True

    def _ask(self) -> None:
        self._client.get_all_node_info(timeout=_ANSWER_S)
