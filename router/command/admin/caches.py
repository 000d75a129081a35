"""What the workers of a model have cached, and the clearing of it: `router cache`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from router.command.admin.drain import NoSuchWorker
from router.dispatch.workers.registry import Registry
from router.dispatch.workers.session import WorkerSession
from rpc.baton.v1 import worker_pb2
from rpc.status import RpcError

PLACES: Final = ("pool", "host", "disk", "object")


async def manage_caches(
    registry: Registry, worker: str | None, clear: Sequence[str] = (), key: str | None = None
) -> list[dict[str, Any]]:
    """The caches of one worker, or of all, after clearing these places of KV that no request reads.

    `key`: only what sessions of this key retain. Workers without a session are left out. Raises NoSuchWorker.
    """
    known = [member.handle.worker_id for member in registry.members()]
    if worker is not None and worker not in known:
        raise NoSuchWorker(f"there is no worker {worker}: {', '.join(known)}")
    sessions = [session for session in registry.sessions() if worker in (None, session.worker_id)]
    request = worker_pb2.ManageCacheRequest(clear=clear, key=key)
    return list(await asyncio.gather(*(_managed(session, request) for session in sessions)))


async def _managed(session: WorkerSession, request: worker_pb2.ManageCacheRequest) -> dict[str, Any]:
    try:
        report = await session.manage_cache(request)
    except RpcError as error:
        return {"worker": session.worker_id, "trouble": str(error)}
    return {
        "worker": session.worker_id,
        "trouble": "",
        "input_tokens": report.input_tokens,
        "places": [_place(place, report, session.info.page_bytes) for place in report.places],
        "retained": [
            {"client": kept.tenant, "key": kept.key, "tokens": kept.tokens, "seconds": kept.seconds}
            for kept in report.retained
        ],
    }


def _place(place: worker_pb2.CachePlace, report: worker_pb2.CacheReport, page_bytes: int) -> dict[str, Any]:
    """Tokens are None for models with several kinds of pages."""
    tokens = report.page_tokens
    return {
        "name": place.name,
        "tokens": place.pages * tokens if tokens else None,
        "bytes": place.pages * page_bytes,
        "capacity_bytes": place.capacity * page_bytes,
        "hit_tokens": place.hit_tokens,
        "cleared_bytes": place.cleared * page_bytes,
    }
