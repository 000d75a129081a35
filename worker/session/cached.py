"""What a worker has cached, by place and by session, and the clearing of it. On the engine thread."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from common.block_hash import BlockHash
from engine.kv.cache.retention import Retentions
from engine.kv.manager.kv_manager import KVManager
from engine.kv.tiers.stats import Tier
from engine.loop.engine import Engine
from rpc.baton.v1 import worker_pb2

_POOL: Final = "pool"


def manage_cache(
    engine: Engine, request: worker_pb2.ManageCacheRequest, now: float
) -> worker_pb2.CacheReport:
    """Clear what `request` names, and report what there is then. Costs O(cached pages) to clear."""
    kv = engine.kv
    blocks: Collection[BlockHash] | None = None
    if request.HasField("key"):
        of_key = kv.retentions.blocks_of(request.key)
        kv.retentions.release(None, request.key)
        blocks = {block for block in of_key if block not in kv.retentions}
    # The pool first: pages that stay there may go down to an empty tier at once.
    places = [_POOL, *(tier.value for tier in Tier)]
    cleared = {place: _clear(kv, place, blocks) for place in places if place in request.clear}
    return _report(engine, cleared, now)


def _clear(kv: KVManager, place: str, blocks: Collection[BlockHash] | None) -> int:
    if place == _POOL:
        return kv.clear(blocks)
    return 0 if kv.tiers is None else kv.tiers.tiers.clear(Tier(place), blocks)


def _report(engine: Engine, cleared: dict[str, int], now: float) -> worker_pb2.CacheReport:
    kv, stats = engine.kv, engine.stats()
    one_kind = kv.needs.stride == 1 and not kv.states.used
    page_tokens = kv.page_size if one_kind else 0
    hits: dict[str, int] = {}
    places = []
    if stats.tiers is not None:
        for tier, capacity in stats.tiers.capacity.items():
            if capacity:
                hits[tier.value] = stats.tiers.counts.promoted[tier] * page_tokens
                places.append((tier.value, stats.tiers.pages[tier], capacity))
    hits[_POOL] = max(0, stats.cache_hit_tokens - sum(hits.values()))
    return worker_pb2.CacheReport(
        places=[
            worker_pb2.CachePlace(
                name=name, pages=pages, capacity=capacity, hit_tokens=hits[name], cleared=cleared.get(name, 0)
            )
            for name, pages, capacity in [(_POOL, stats.pages.cached, stats.pages.total), *places]
        ],
        page_tokens=page_tokens,
        input_tokens=stats.prompt_tokens + stats.cache_hit_tokens,
        retained=_retained(kv.retentions, kv.page_size, now),
    )


def _retained(retentions: Retentions, page_size: int, now: float) -> Iterable[worker_pb2.RetainedSession]:
    for (tenant, key), ends in retentions.held_until().items():
        for end, blocks in sorted(ends.items(), reverse=True):
            yield worker_pb2.RetainedSession(
                tenant=tenant, key=key, tokens=blocks * page_size, seconds=max(0.0, end - now)
            )
