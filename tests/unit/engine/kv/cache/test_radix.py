"""The radix cache against a brute-force dictionary of page-aligned prefixes, with windows and states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from common.block_hash import block_hashes
from common.kv_groups import NO_PAGE, ONE_GROUP, KVGroup, group_layers
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.kv.cache.radix import WHATEVER_IS_THERE, RadixCache
from engine.kv.cache.radix_node import RadixNode
from engine.kv.manager.state_slots import StateSlots

PAGE = 2
prompts = st.lists(st.integers(0, 2), max_size=14)


def whole_pages(tokens: list[int]) -> list[int]:
    return tokens[: len(tokens) // PAGE * PAGE]


def insert(cache: RadixCache, tokens: list[int], first_page: int = 0) -> list[int]:
    pages = list(range(first_page, first_page + len(tokens) // PAGE))
    return cache.insert(whole_pages(tokens), pages, cache.root()).adopted


def test_a_prefix_is_found_in_whole_pages_only() -> None:
    cache = RadixCache(PAGE)
    insert(cache, [1, 2, 3, 4, 5, 6])
    assert cache.match([1, 2, 3, 4, 5], cache.root()).pages == [0, 1]
    assert cache.match([1, 2, 3, 9], cache.root()).pages == [0]
    assert cache.match([1], cache.root()).pages == []


def test_inserting_what_is_known_adopts_only_the_new_tail() -> None:
    cache = RadixCache(PAGE)
    insert(cache, [1, 2, 3, 4])
    assert insert(cache, [1, 2, 3, 4, 5, 6], first_page=10) == [12]
    assert cache.match([1, 2, 3, 4, 5, 6], cache.root()).pages == [0, 1, 12]


def test_eviction_takes_the_least_recently_used_tail_first() -> None:
    cache = RadixCache(PAGE)
    insert(cache, [1, 1, 2, 2], first_page=0)
    insert(cache, [3, 3, 4, 4], first_page=10)
    cache.match([1, 1, 2, 2], cache.root())
    assert cache.evict(1) == [11]
    assert cache.evict(2) == [10, 1]
    assert cache.match([1, 1, 2, 2], cache.root()).pages == [0]


def test_a_locked_prefix_survives_eviction_and_splits_under_the_lock() -> None:
    cache = RadixCache(PAGE)
    insert(cache, [1, 1, 2, 2, 3, 3])
    node = cache.match([1, 1, 2, 2, 3, 3], cache.root()).node
    cache.lock(node)
    cache.match([1, 1, 9, 9], cache.root())  # splits the locked edge after its first page
    assert cache.evict(10) == []
    cache.unlock(node)
    assert sorted(cache.evict(10)) == [0, 1, 2]
    assert cache.num_pages == 0


def test_a_search_may_start_below_a_node() -> None:
    cache = RadixCache(PAGE)
    insert(cache, [1, 1, 2, 2, 3, 3])
    node = cache.match([1, 1], cache.root()).node
    found = cache.match([2, 2, 3, 3], node)
    assert found.pages == [1, 2]
    assert found.node.depth == 3


GROUPS = [ONE_GROUP, *(group_layers(windows, 64) for windows in ([None, 3], [4], [2, None, 6]))]
Prefix = tuple[int, ...]
"""Tokens up to the end of a block, which they name."""


class RadixMachine(RuleBasedStateMachine):
    """Inserts, locks and evictions in any order; the model remembers the pages and states of each prefix.

    What can be continued is found by looking at every page that a token behind the prefix sees.
    """

    locked = Bundle("locked")

    @initialize(model=st.sampled_from([*((groups, False) for groups in GROUPS), (ONE_GROUP, True)]))
    def start(self, model: tuple[tuple[KVGroup, ...], bool]) -> None:
        self.groups, has_states = model
        self.states = StateSlots(1000 if has_states else 0, PAGE)
        self.cache = RadixCache(PAGE, self.groups, trimmed=self.states.drop)
        self.cache.keep_journal()
        self.reported: set[int] = set()
        self.next_page = 0
        self.model: dict[Prefix, list[int]] = {}
        """The pages of each cached block, NO_PAGE where one is missing."""
        self.locks: list[Prefix] = []
        self.readers: Counter[int] = Counter()
        """Readers of pages of windows."""
        self.checkpoints: set[Prefix] = set()

    def known(self, tokens: list[int]) -> int:
        """Blocks that are cached, whatever pages are missing."""
        ends = range(PAGE, len(tokens) + 1, PAGE)
        return next((end // PAGE - 1 for end in ends if tuple(tokens[:end]) not in self.model), len(ends))

    def page_of(self, tokens: list[int], position: int, group: int) -> int:
        return self.model[tuple(tokens[: (position // PAGE + 1) * PAGE])][group]

    def seen(self, tokens: list[int], blocks: int) -> list[int]:
        """Pages of windows that the token after this number of blocks attends to."""
        places = {
            (position // PAGE, number): self.page_of(tokens, position, number)
            for number, group in enumerate(self.groups)
            if group.window is not None
            for position in range(max(0, blocks * PAGE - group.window + 1), blocks * PAGE)
        }
        return list(places.values())

    def usable(self, tokens: list[int]) -> int:
        ends = range(self.known(tokens), 0, -1)
        return next((end for end in ends if NO_PAGE not in self.seen(tokens, end)), 0)

    def pages_of(self, tokens: list[int], blocks: int) -> list[int]:
        ends = range(PAGE, blocks * PAGE + 1, PAGE)
        return [page for end in ends for page in self.model[tuple(tokens[:end])]]

    @rule(tokens=prompts, data=st.data())
    def insert(self, tokens: list[int], data: st.DataObject) -> None:
        """A request has some pages of windows, and has left others behind."""
        tokens, expected = whole_pages(tokens), []
        table: list[int] = []
        for end in range(PAGE, len(tokens) + 1, PAGE):
            pages = list(range(self.next_page, self.next_page + len(self.groups)))
            self.next_page += len(pages)
            for number, group in enumerate(self.groups):
                if group.window is not None and data.draw(st.booleans()):
                    pages[number] = NO_PAGE
            table += pages
            before = self.model.setdefault(tuple(tokens[:end]), [NO_PAGE] * len(pages))
            for number, page in enumerate(pages):
                if before[number] == NO_PAGE != page:
                    before[number] = page
                    expected.append(page)
        assert sorted(self.cache.insert(tokens, table, self.cache.root()).adopted) == sorted(expected)

    @rule(tokens=prompts)
    def peek(self, tokens: list[int]) -> None:
        found = self.cache.match(tokens, self.cache.root(), touch=False)
        assert found.pages == self.pages_of(tokens, self.usable(tokens))
        known = self.cache.known(tokens, self.cache.root())
        assert known.pages == self.pages_of(tokens, self.known(tokens))
        assert self.cache.usable(known) == self.usable(tokens)
        if self.states.used:
            depths = {len(p) // PAGE for p in self.checkpoints if p == tuple(tokens[: len(p)])}
            assert self.states.depths(known) == depths
            assert self.states.usable_depth(known) == max(depths, default=0)
            assert self.states.usable(self.cache.match(tokens, self.cache.root())).blocks == max(
                depths, default=0
            )

    @precondition(lambda self: self.states.used and self.model)
    @rule(data=st.data())
    def save_state(self, data: st.DataObject) -> None:
        longest = sorted(self.model, key=len, reverse=True)
        prefix = data.draw(st.sampled_from(longest))
        slot = self.states.take_for_checkpoint(owner=1)
        request = Request(1, prefix, SamplingParams(max_tokens=1))
        self.states.arrived(request, self.cache.match(prefix, self.cache.root()).node, slot, owner=1)
        self.checkpoints.add(prefix)

    @rule(target=locked, tokens=prompts)
    def lock(self, tokens: list[int]) -> tuple[RadixNode, Prefix, list[int]]:
        found = self.cache.match(tokens, self.cache.root())
        blocks = self.usable(tokens)
        assert found.node.depth == found.blocks == blocks
        assert found.pages == self.pages_of(tokens, blocks)
        self.cache.lock(found.node)
        read = self.seen(tokens, blocks)
        self.cache.windows.found(read)
        self.readers.update(read)
        prefix = tuple(tokens[: blocks * PAGE])
        self.locks.append(prefix)
        return found.node, prefix, read

    @rule(lock=consumes(locked), passed=st.booleans())
    def unlock(self, lock: tuple[RadixNode, Prefix, list[int]], passed: bool) -> None:
        node, prefix, read = lock
        self.cache.windows.unread(read, passed=passed)
        self.readers -= Counter(read)
        self.cache.unlock(node)
        self.locks.remove(prefix)

    @rule(tokens=prompts)
    def forget(self, tokens: list[int]) -> None:
        node = self.cache.match(tokens, self.cache.root(), resume=WHATEVER_IS_THERE).node
        known = tuple(tokens[: node.depth * PAGE])
        path = {known[:end] for end in range(PAGE, len(known) + 1, PAGE)}
        behind = {prefix for prefix in self.model if known and prefix[: len(known)] == known}
        elsewhere = self.model.keys() - path - behind
        kept = self._locked() | {p[:end] for p in elsewhere for end in range(PAGE, len(p) + 1, PAGE)}
        gone = (path | behind) - kept if known not in self._locked() else set()
        dropped = self.cache.forget(node)
        expected = [page for prefix in gone for page in self.model[prefix] if page != NO_PAGE]
        assert sorted(dropped) == sorted(expected)
        self._drop(gone)

    @rule(wanted=st.integers(1, 5))
    def evict(self, wanted: int) -> None:
        possible = self._evictable()
        evicted = self.cache.evict(wanted)
        assert min(wanted, len(possible)) <= len(evicted) < wanted + len(self.groups)
        assert len(set(evicted)) == len(evicted)
        assert possible.issuperset(evicted)
        content = self._content()
        gone = self.model.keys() - content.keys()
        assert not gone & self._locked()
        lost = [page for prefix in gone for page in self.model[prefix] if page != NO_PAGE]
        assert set(evicted).issuperset(lost)
        self._drop(gone)
        for pages in self.model.values():
            pages[:] = [NO_PAGE if page in evicted else page for page in pages]

    def _drop(self, gone: Set[Prefix]) -> None:
        self.model = {prefix: pages for prefix, pages in self.model.items() if prefix not in gone}
        self.checkpoints &= self.model.keys()

    def _locked(self) -> set[Prefix]:
        return {lock[:end] for lock in self.locks for end in range(PAGE, len(lock) + 1, PAGE)}

    def _evictable(self) -> set[int]:
        """Pages that no request needs."""
        locked = self._locked()
        return {
            page
            for prefix, pages in self.model.items()
            for page, group in zip(pages, self.groups, strict=True)
            if page != NO_PAGE and (page not in self.readers if group.window else prefix not in locked)
        }

    def _content(self) -> dict[Prefix, list[int]]:
        """Content of the tree."""
        content: dict[Prefix, list[int]] = {}
        ends: dict[RadixNode, Prefix] = {self.cache.root(): ()}
        stride = len(self.groups)
        for node in self.cache.nodes():  # parents first
            assert node.parent is not None
            begin = ends[node.parent]
            ends[node] = begin + tuple(node.keys)
            assert node.depth == node.parent.depth + node.length
            assert len(node.pages) == node.length * stride
            for block in range(node.length):
                prefix = begin + tuple(node.keys[: (block + 1) * PAGE])
                content[prefix] = node.pages[block * stride : (block + 1) * stride]
        return content

    @invariant()
    def the_tree_holds_exactly_the_model(self) -> None:
        if not hasattr(self, "cache"):
            return
        assert self._content() == self.model
        pages = [page for pages in self.model.values() for page in pages if page != NO_PAGE]
        assert self.cache.num_pages == len(set(pages)) == len(pages)
        assert self.cache.num_evictable == len(self._evictable())
        if self.states.used:
            assert self.states.pool.counts().cached == len(self.checkpoints)

    @invariant()
    def the_journal_tells_all_that_is_cached(self) -> None:
        if not hasattr(self, "cache"):
            return
        for change in self.cache.take_changes():
            (self.reported.update if change.stored else self.reported.difference_update)(change.blocks)
        expected = {block_hashes(prefix, PAGE)[-1] for prefix in self.model}
        assert self.reported == expected
        assert set(self.cache.blocks()) == expected


TestRadixMachine = RadixMachine.TestCase
TestRadixMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
