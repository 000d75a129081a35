"""Everything that shows a worker shows the role that it is used for."""

from __future__ import annotations

import asyncio
from typing import Any

from router.api.page.status import _worker
from router.dispatch.workers.registry import Registry
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL


class Handle:
    worker_id = "decode-0"
    role = ROLE_DECODE


def test_an_assigned_role_is_announced_and_shown() -> None:
    seen: list[tuple[str, bool]] = []
    handle: Any = Handle()
    registry = Registry([handle], lambda member, up: seen.append((member.role_name, up)))
    [member] = registry.members()
    assert _worker(member, None)["role"] == "decode"
    asyncio.run(registry.assign(member, ROLE_PREFILL))
    assert seen == [("prefill", False)]
    assert _worker(member, None)["role"] == "prefill"
