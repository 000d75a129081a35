"""What clients retain: until its time is over, within the budget of a tenant, whatever else they do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from common.block_hash import BlockHash
from engine.core.retention import RetainedPrefix, Retention
from engine.kv.cache.radix import RadixCache
from engine.kv.cache.retention import Retentions
from engine.kv.tiers.level import Level

TURN = list(range(1, 7))


def test_a_sequence_is_retained_until_its_time_is_over() -> None:
    retentions = Retentions(10)
    retentions.retain("a", "chat", TURN, 5.0, now=1.0)
    retentions.expire(5.9)
    assert all(block in retentions for block in TURN)
    ended: list[int] = []
    retentions.on_ended.append(ended.append)
    retentions.expire(6.0)
    assert not any(block in retentions for block in TURN)
    assert ended == TURN


def test_a_later_turn_takes_the_place_of_what_it_continues() -> None:
    retentions = Retentions(10)
    retentions.retain("a", "chat", TURN[:3], 5.0, now=0.0)
    ended: list[int] = []
    retentions.on_ended.append(ended.append)
    retentions.retain("a", "chat", TURN, 5.0, now=0.0)
    assert not ended, "no block has left"
    assert [retained.until for retained in retentions.sequences()] == [5.0]


def test_what_is_retained_for_longer_than_a_later_turn_stays() -> None:
    retentions, retention = (
        Retentions(10),
        Retention("chat", prefixes=(RetainedPrefix(7, 60.0), RetainedPrefix(12, 5.0))),
    )
    for blocks, seconds in retention.parts(TURN, page_size=3):
        retentions.retain("a", "chat", blocks, seconds, now=0.0)
    assert sorted((len(r.blocks), r.until) for r in retentions.sequences()) == [(2, 60.0), (4, 5.0)]
    retentions.retain("a", "chat", TURN[:2], 5.0, now=0.0)
    retentions.expire(5.0)
    assert [block in retentions for block in TURN] == [True] * 2 + [False] * 4


def test_each_block_of_a_session_is_held_as_long_as_any_sequence_retains_it() -> None:
    retentions = Retentions(10)
    retentions.retain("a", "chat", [1, 2], 3600, now=0)
    retentions.retain("a", "chat", [1, 2, 3, 4, 5], 300, now=0)
    assert retentions.held_until() == {("a", "chat"): {3600: 2, 300: 3}}


def test_what_two_sessions_share_is_retained_until_both_have_released_it() -> None:
    retentions = Retentions(10)
    retentions.retain("a", "one", [1, 2, 3], 5.0, now=0.0)
    retentions.retain("a", "two", [1, 2, 4], 5.0, now=0.0)
    assert retentions.size_of("a") == 4
    assert retentions.release("a", "one") == 1
    assert [block in retentions for block in (1, 2, 3, 4)] == [True, True, False, True]
    assert retentions.release("b", "two") == 0
    assert retentions.release("a", None) == 1
    assert len(retentions) == 0


def test_a_tenant_has_a_budget_and_the_sequence_with_least_time_left_goes_first() -> None:
    retentions = Retentions(6)
    retentions.retain("a", "", [1, 2, 3], 9.0, now=0.0)
    retentions.retain("a", "", [4, 5, 6], 5.0, now=0.0)
    retentions.retain("b", "", [7, 8, 9], 1.0, now=0.0)
    retentions.retain("a", "", [10], 9.0, now=0.0)
    assert [block in retentions for block in (3, 6, 9, 10)] == [True, False, True, True]


def test_of_a_sequence_beyond_the_budget_the_beginning_is_retained() -> None:
    retentions = Retentions(4)
    retentions.retain("a", "", TURN, 9.0, now=0.0)
    assert [block in retentions for block in TURN] == [True] * 4 + [False] * 2


def test_the_same_blocks_are_not_listed_for_any_number_of_sessions() -> None:
    """One prompt with one answer, under many values of prompt_cache_key."""
    retentions, blocks = Retentions(100), list(range(100))
    for number in range(500):
        retentions.retain("a", f"session {number}", blocks, 86400.0, float(number))
    assert retentions.size_of("a") == 100
    assert sorted(r.key for r in retentions.sequences()) == [f"session {n}" for n in range(484, 500)]
    retentions.retain("b", "", blocks, 86400.0, 0.0)
    assert len(retentions.sequences()) == 17, "each tenant has a limit of its own"


def test_sequences_that_were_replaced_or_released_leave_nothing_behind() -> None:
    retentions = Retentions(100)
    for number in range(500):
        retentions.retain("a", "chat", [1, 2, 3], 60.0 + number, now=0.0)
        retentions.retain("b", f"{number}", [1, 2, 3], 60.0, now=0.0)
        retentions.release("b", None)
    assert len(retentions.sequences()) == 1
    assert len(retentions._by_end._heap) < 50
    assert retentions._of_tenant.keys() == {"a"}
    assert len(retentions._of_tenant["a"]._heap) < 50


class RetentionMachine(RuleBasedStateMachine):
    """Against a list of sequences. A block is its whole prefix, so that equal blocks follow equal ones."""

    @initialize(budget=st.integers(0, 12))
    def start(self, budget: int) -> None:
        self.retentions = Retentions(budget)
        self.now = 0.0
        self.budget = budget
        self.wanted: list[tuple[str, str, list[int], float]] = []

    @rule(
        tenant=st.sampled_from("ab"),
        key=st.sampled_from(["", "x"]),
        path=st.lists(st.integers(0, 1), min_size=1, max_size=6),
        seconds=st.sampled_from([0.0, 1.0, 5.0]),
    )
    def retain(self, tenant: str, key: str, path: list[int], seconds: float) -> None:
        blocks = [hash(tuple(path[: end + 1])) for end in range(len(path))][: self.budget]
        self.retentions.retain(tenant, key, blocks, seconds, self.now)
        if not blocks or not seconds:
            return
        until = self.now + seconds
        same = [w for w in self.wanted if w[:2] == (tenant, key)]
        if any(w[2] == blocks and w[3] > until for w in same):
            return
        kept = [w for w in self.wanted if w not in same or w[2][-1] not in blocks or w[3] > until]
        self.wanted = [*kept, (tenant, key, blocks, until)]
        mine = sorted((w for w in kept if w[0] == tenant), key=lambda w: w[3])
        while mine:
            listed = [b for w in self.wanted if w[0] == tenant for b in w[2]]
            if len(set(listed)) <= self.budget and len(listed) <= 16 * self.budget:
                break
            self.wanted.remove(mine.pop(0))

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.retentions.expire(self.now)
        self.wanted = [w for w in self.wanted if w[3] > self.now]

    @rule(tenant=st.sampled_from(["a", "b", None]), key=st.sampled_from(["", "x", None]))
    def release(self, tenant: str | None, key: str | None) -> None:
        gone = [w for w in self.wanted if tenant in (None, w[0]) and key in (None, w[1])]
        assert self.retentions.release(tenant, key) == len(gone)
        self.wanted = [w for w in self.wanted if w not in gone]

    @invariant()
    def what_is_wanted_is_retained_and_nothing_else(self) -> None:
        if not hasattr(self, "retentions"):
            return
        blocks = {block for _, _, sequence, _ in self.wanted for block in sequence}
        assert len(self.retentions) == len(blocks)
        assert all(block in self.retentions for block in blocks)
        for tenant in "ab":
            assert self.retentions.size_of(tenant) <= self.budget


TestRetentionMachine = RetentionMachine.TestCase


def cache_with(retentions: Retentions) -> RadixCache:
    cache = RadixCache(1, spared=retentions)
    cache.keep_journal()
    return cache


def test_retained_pages_are_evicted_after_all_others_and_before_a_request_lacks_them() -> None:
    retentions = Retentions(10)
    cache = cache_with(retentions)
    first = cache.insert([1, 2, 3], [0, 1, 2], cache.root()).node
    retentions.retain("a", "", first.path_blocks()[:2], 9.0, now=0.0)
    cache.insert([4, 5], [10, 11], cache.root())
    assert cache.evict(1) == [2]
    assert cache.evict(2) == [10, 11]
    assert cache.evict(1) == [1]
    assert cache.evict(5) == [0]


def test_pages_that_are_no_longer_retained_are_evicted_in_their_old_order() -> None:
    retentions = Retentions(10)
    cache = cache_with(retentions)
    first = cache.insert([1, 2], [0, 1], cache.root()).node
    retentions.retain("a", "", first.path_blocks(), 9.0, now=0.0)
    cache.insert([4, 5], [10, 11], cache.root())
    assert cache.evict(1) == [11]
    retentions.expire(9.0)
    assert cache.evict(2) == [0, 1]


@given(st.data())
def test_no_retained_page_is_evicted_while_another_could_be(data: st.DataObject) -> None:
    retentions = Retentions(8)
    cache = cache_with(retentions)
    owners: dict[int, int] = {}
    for now in range(12):
        tokens = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=6))
        node = cache.insert(tokens, [100 * now + i for i in range(len(tokens))], cache.root()).node
        owners = {page: block for n in cache.nodes() for page, block in zip(n.pages, n.blocks, strict=True)}
        if data.draw(st.booleans()):
            retentions.retain("a", "", node.path_blocks(), 3.0, float(now))
        retentions.expire(float(now))
        for page in cache.evict(data.draw(st.integers(0, 5))):
            if owners.pop(page) in retentions:
                assert all(block in retentions for block in owners.values())


def test_retained_copies_make_room_on_a_tier_after_all_others() -> None:
    retentions, level = Retentions(10), Level(3)
    level.spare(retentions)
    for number in (1, 2, 3):
        level.begin(bytes([number]), number)
        level.complete(bytes([number]), 0)
    retentions.retain("a", "", [1, 2], 9.0, now=0.0)
    level.begin(b"4", 4)
    level.complete(b"4", 0)
    assert [key for key, *_ in level.lost] == [bytes([3])]
    level.touch([bytes([1])])
    for number in (5, 6):
        level.begin(bytes([number]), number)  # nothing but retained copies is idle in the end
    assert [key for key, *_ in level.lost] == [bytes([3]), b"4", bytes([2])]
    retentions.expire(9.0)
    assert level.begin(b"7", 7) is not None
    assert [key for key, *_ in level.lost][-1] == bytes([1])


class Counting(Retentions):
    """Counts the blocks of which is asked whether they are retained."""

    asked = 0

    def __contains__(self, block: BlockHash) -> bool:
        self.asked += 1
        return super().__contains__(block)


def test_the_end_of_a_sequence_concerns_its_own_copies_alone() -> None:
    retentions, level = Counting(2000), Level(1000)
    level.spare(retentions)
    for number in range(1000):
        level.begin(b"%d" % number, number)
        level.complete(b"%d" % number, 0)
        retentions.retain("a", str(number), [number], 9.0 + (number != 700), now=0.0)
    level.begin(b"new", 5000)  # all others are spared; the first of them makes room
    level.complete(b"new", 0)
    retentions.expire(9.5)
    retentions.asked = 0
    level.begin(b"next", 5001)
    assert [key for key, *_ in level.lost] == [b"0", b"700"]
    assert retentions.asked <= 2


def test_the_end_of_a_sequence_concerns_its_own_leaves_alone() -> None:
    retentions = Counting(2000)
    cache = cache_with(retentions)
    for number in range(500):
        leaf = cache.insert([number], [number], cache.root()).node
        retentions.retain("a", str(number), leaf.path_blocks(), 9.0 + (number != 300), now=0.0)
    cache.insert([1000, 1001], [1000, 1001], cache.root())
    assert cache.evict(1) == [1001]
    retentions.expire(9.5)
    retentions.asked = 0
    assert cache.evict(2) == [300, 1000]
    assert retentions.asked <= 4
    assert cache.evict(1) == [0], "the least recently used of those that are retained"
