"""The radix cache against a brute-force dictionary of page-aligned prefixes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from common.block_hash import block_hashes
from engine.kv_cache.radix import RadixCache, RadixNode

PAGE = 2
prompts = st.lists(st.integers(0, 2), max_size=14)


def whole_pages(tokens: list[int]) -> list[int]:
    return tokens[: len(tokens) // PAGE * PAGE]


def insert(cache: RadixCache, tokens: list[int], first_page: int = 0) -> list[int]:
    pages = list(range(first_page, first_page + len(tokens) // PAGE))
    return cache.insert(whole_pages(tokens), pages).adopted


def test_a_prefix_is_found_in_whole_pages_only() -> None:
    cache = RadixCache(PAGE)
    insert(cache, [1, 2, 3, 4, 5, 6])
    assert cache.match([1, 2, 3, 4, 5]).pages == [0, 1]
    assert cache.match([1, 2, 3, 9]).pages == [0]
    assert cache.match([1]).pages == []


def test_inserting_what_is_known_adopts_only_the_new_tail() -> None:
    cache = RadixCache(PAGE)
    insert(cache, [1, 2, 3, 4])
    assert insert(cache, [1, 2, 3, 4, 5, 6], first_page=10) == [12]
    assert cache.match([1, 2, 3, 4, 5, 6]).pages == [0, 1, 12]


def test_eviction_takes_the_least_recently_used_tail_first() -> None:
    cache = RadixCache(PAGE)
    insert(cache, [1, 1, 2, 2], first_page=0)
    insert(cache, [3, 3, 4, 4], first_page=10)
    cache.match([1, 1, 2, 2])
    assert cache.evict(1) == [11]
    assert cache.evict(2) == [10, 1]
    assert cache.match([1, 1, 2, 2]).pages == [0]


def test_a_locked_prefix_survives_eviction_and_splits_under_the_lock() -> None:
    cache = RadixCache(PAGE)
    insert(cache, [1, 1, 2, 2, 3, 3])
    node = cache.match([1, 1, 2, 2, 3, 3]).node
    cache.lock(node)
    cache.match([1, 1, 9, 9])  # splits the locked edge after its first page
    assert cache.evict(10) == []
    cache.unlock(node)
    assert sorted(cache.evict(10)) == [0, 1, 2]
    assert cache.num_pages == 0


def test_a_search_may_start_below_a_node() -> None:
    cache = RadixCache(PAGE)
    insert(cache, [1, 1, 2, 2, 3, 3])
    node = cache.match([1, 1]).node
    found = cache.match([2, 2, 3, 3], after=node)
    assert found.pages == [1, 2]
    assert found.node.depth == 3


class RadixMachine(RuleBasedStateMachine):
    """Inserts, locks and evictions in any order; the model remembers which prefix each page stands for."""

    locked = Bundle("locked")

    def __init__(self) -> None:
        super().__init__()
        self.cache = RadixCache(PAGE)
        self.cache.keep_journal()
        self.reported: set[int] = set()
        self.next_page = 0
        self.model: dict[tuple[int, ...], int] = {}
        self.locks: list[tuple[int, ...]] = []

    def expected(self, tokens: list[int]) -> list[int]:
        pages = []
        for end in range(PAGE, len(tokens) + 1, PAGE):
            if (page := self.model.get(tuple(tokens[:end]))) is None:
                break
            pages.append(page)
        return pages

    @rule(tokens=prompts)
    def insert(self, tokens: list[int]) -> None:
        tokens = whole_pages(tokens)
        pages = list(range(self.next_page, self.next_page + len(tokens) // PAGE))
        self.next_page += len(pages)
        known = len(self.expected(tokens))
        assert self.cache.insert(tokens, pages).adopted == pages[known:]
        for index in range(known, len(pages)):
            self.model[tuple(tokens[: (index + 1) * PAGE])] = pages[index]

    @rule(tokens=prompts)
    def peek(self, tokens: list[int]) -> None:
        assert self.cache.match(tokens, touch=False).pages == self.expected(tokens)

    @rule(target=locked, tokens=prompts)
    def lock(self, tokens: list[int]) -> tuple[RadixNode, tuple[int, ...]]:
        found = self.cache.match(tokens)
        assert found.pages == self.expected(tokens)
        assert found.node.depth == len(found.pages)
        self.cache.lock(found.node)
        prefix = tuple(tokens[: len(found.pages) * PAGE])
        self.locks.append(prefix)
        return found.node, prefix

    @rule(lock=consumes(locked))
    def unlock(self, lock: tuple[RadixNode, tuple[int, ...]]) -> None:
        self.cache.unlock(lock[0])
        self.locks.remove(lock[1])

    @rule(tokens=prompts)
    def forget(self, tokens: list[int]) -> None:
        node = self.cache.match(tokens).node
        known = tuple(tokens[: node.depth * PAGE])
        path = {known[:end] for end in range(PAGE, len(known) + 1, PAGE)}
        behind = {prefix for prefix in self.model if known and prefix[: len(known)] == known}
        elsewhere = self.model.keys() - path - behind
        kept = self._locked() | {p[:end] for p in elsewhere for end in range(PAGE, len(p) + 1, PAGE)}
        dropped = set(self.cache.forget(node))
        assert dropped == {self.model[p] for p in (path | behind) - kept if known not in self._locked()}
        self.model = {prefix: page for prefix, page in self.model.items() if page not in dropped}

    @rule(wanted=st.integers(1, 5))
    def evict(self, wanted: int) -> None:
        unlocked = len(self.model) - len(self._locked())
        evicted = self.cache.evict(wanted)
        assert len(evicted) == min(wanted, unlocked)
        gone = set(evicted)
        assert not gone & {self.model[prefix] for prefix in self._locked()}
        self.model = {prefix: page for prefix, page in self.model.items() if page not in gone}

    def _locked(self) -> set[tuple[int, ...]]:
        return {lock[:end] for lock in self.locks for end in range(PAGE, len(lock) + 1, PAGE)}

    @invariant()
    def the_tree_holds_exactly_the_model(self) -> None:
        pages = [page for node in self.cache.nodes() for page in node.pages]
        assert sorted(pages) == sorted(self.model.values())
        assert self.cache.num_pages == len(pages)
        assert self.cache.num_evictable == len(self.model) - len(self._locked())

    @invariant()
    def the_journal_tells_all_that_is_cached(self) -> None:
        for change in self.cache.take_changes():
            (self.reported.update if change.stored else self.reported.difference_update)(change.blocks)
        expected = {block_hashes(prefix, PAGE)[-1] for prefix in self.model}
        assert self.reported == expected
        assert set(self.cache.blocks()) == expected

    @invariant()
    def depths_add_up(self) -> None:
        for node in self.cache.nodes():
            assert node.parent is not None
            assert node.depth == node.parent.depth + len(node.pages)
            assert len(node.tokens) == len(node.pages) * PAGE


TestRadixMachine = RadixMachine.TestCase
TestRadixMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
