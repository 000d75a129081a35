"""Replacement of a model's weights while its engine has no requests."""

from __future__ import annotations

from typing import Any

from engine.core.weights import NewWeights
from engine.errors import EngineBusy, WeightsIncomplete
from engine.executor.base import Runner
from engine.kv.manager.kv_manager import KVManager
from engine.loop.requests import Requests


def replace_weights(
    new: NewWeights, runner: Runner[Any], kv: KVManager, requests: Requests, *, busy: bool
) -> None:
    """Overwrite the weights in place and drop all cached KV. `busy`: whether there are requests.

    Raises:
        EngineBusy: there are requests, or KV is in use; nothing has changed.
        RefillRefused: the weights do not fit the model; nothing has changed.
        WeightsIncomplete: only a part was overwritten. Requests get this error until a refill succeeds.
    """
    if busy:
        raise EngineBusy("weights are replaced while there are no requests")
    if not is_unused(kv):
        raise EngineBusy("weights are replaced while no pages of KV are in use, or may still be written")
    incomplete: WeightsIncomplete | None = None
    try:
        runner.refill(new)
    except WeightsIncomplete as error:
        incomplete = error
    requests.incomplete = incomplete
    kv.clear(None)
    if incomplete is not None:
        raise incomplete


def is_unused(kv: KVManager) -> bool:
    """Whether all pages and states are free or cached, and no reader has locked a cached page."""
    pools = kv.pool.counts(), kv.states.pool.counts()
    in_use = sum(pool.held + pool.in_flight + pool.quarantined for pool in pools)
    return not in_use and kv.cache.num_evictable == pools[0].cached
