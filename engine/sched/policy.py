"""Which waiting request goes next."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence

from engine.config import Policy
from engine.core.request import Request
from engine.kv_cache.radix import RadixCache, RadixNode

__all__ = ["MAX_RANKED", "rank"]

MAX_RANKED = 128
"""Policies that look into the cache look at this many requests; the others keep their order of arrival."""


def rank(
    waiting: Sequence[Request], policy: Policy, cache: RadixCache | None, rng: random.Random
) -> Iterable[Request]:
    """`waiting` (by `Request.turn`) in the order in which to admit. Ties keep their order of arrival.

    Requests that were preempted come first where the policy has no other reason.
    """
    if policy is Policy.SHORTEST:
        return waiting
    arrived = sorted(waiting, key=lambda r: r.handicap)
    match policy:
        case Policy.PRIORITY:
            return sorted(arrived, key=lambda r: r.priority)
        case Policy.LOF:
            return sorted(arrived, key=lambda r: -r.sampling.max_tokens)
        case Policy.RANDOM:
            return rng.sample(arrived, len(arrived))
        case Policy.LPM | Policy.DFS_WEIGHT if cache is not None:
            first, later = arrived[:MAX_RANKED], arrived[MAX_RANKED:]
            by_prefix = _longest_prefix if policy is Policy.LPM else _depth_first
            return [*by_prefix(first, cache), *later]
    return arrived


def _longest_prefix(waiting: list[Request], cache: RadixCache) -> list[Request]:
    return sorted(waiting, key=lambda r: -len(cache.match(r.prompt, touch=False).pages))


def _depth_first(waiting: list[Request], cache: RadixCache) -> list[Request]:
    """Subtrees with most waiting requests first, and each subtree at one go (SGLang's dfs-weight)."""
    at = {r.id: cache.match(r.prompt, touch=False).node for r in waiting}
    weight: Counter[RadixNode] = Counter()
    for node in at.values():
        above: RadixNode | None = node
        while above is not None:
            weight[above] += 1
            above = above.parent

    def path(request: Request) -> list[tuple[int, int]]:
        steps: list[tuple[int, int]] = []
        node: RadixNode | None = at[request.id]
        while node is not None:
            steps.append((-weight[node], id(node)))
            node = node.parent
        return steps[::-1]

    return sorted(waiting, key=path)
