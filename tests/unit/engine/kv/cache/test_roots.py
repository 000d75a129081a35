"""Roots of namespaces come and go with their use."""

from __future__ import annotations

from common.origin import namespace_of
from engine.kv.cache.radix import RadixCache
from engine.kv.cache.roots import Roots

MANY = [namespace_of(cache_salt=str(number)) for number in range(2000)]


def test_roots_that_nothing_uses_are_removed() -> None:
    roots = Roots(16)
    for namespace in MANY:
        roots.of(namespace)
    assert len(list(roots)) < 100


def test_a_root_stays_while_it_is_locked_or_blocks_follow_it() -> None:
    cache = RadixCache(2)
    locked, filled = cache.root(MANY[0]), cache.root(MANY[1])
    cache.lock(locked)
    cache.insert([1, 2], [7], filled)
    for namespace in MANY[2:]:
        assert not cache.match([1, 2], cache.root(namespace)).pages
    assert cache.root(MANY[0]) is locked
    assert cache.match([1, 2], cache.root(MANY[1])).pages == [7]

    cache.unlock(locked)
    assert cache.evict(1) == [7], "eviction sees all trees"
    for namespace in MANY[2:]:
        cache.root(namespace)
    assert cache.root(MANY[0]) is not locked
    assert cache.root(MANY[1]) is not filled
