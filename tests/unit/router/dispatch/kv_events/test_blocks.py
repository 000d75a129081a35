"""A subscriber that applies the events knows exactly the blocks that workers have, with their tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from common.block_hash import BlockHash, block_hashes
from common.origin import activation_key, media_keys, namespace_of
from router.dispatch.kv_events.blocks import (
    BlockEvent,
    BlocksRemoved,
    BlocksStored,
    CachedBlocks,
    NamedBlocks,
)

PAGE = 2
PROMPTS = ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7, 8, 9], [9, 9, 1, 2], [1])
WORKERS = ("decode-0", "decode-1")


class Subscriber:
    """Applies events as a gateway does: a block's tokens and its parent must come with it."""

    def __init__(self) -> None:
        self.prefixes: dict[BlockHash, list[int]] = {}

    def apply(self, events: list[BlockEvent]) -> None:
        for event in events:
            if isinstance(event, BlocksRemoved):
                for block in event.blocks:
                    del self.prefixes[block]
                continue
            assert len(event.tokens) == PAGE * len(event.blocks)
            prefix = [] if event.parent is None else self.prefixes[event.parent]
            for number, block in enumerate(event.blocks):
                prefix = prefix + event.tokens[number * PAGE : (number + 1) * PAGE]
                assert block not in self.prefixes
                self.prefixes[block] = prefix


changes = st.lists(
    st.tuples(
        st.sampled_from(("learn", "stored", "removed", "lost", "take")),
        st.sampled_from(PROMPTS),
        st.sampled_from(WORKERS),
        st.integers(0, 3),
    ),
    max_size=30,
)


@given(changes)
def test_a_subscriber_knows_the_blocks_that_workers_have(
    steps: list[tuple[str, list[int], str, int]],
) -> None:
    """As radix caches do: a worker has a block only with all blocks before it."""
    blocks, subscriber = CachedBlocks(PAGE), Subscriber()
    have: dict[str, set[BlockHash]] = {worker: set() for worker in WORKERS}
    for kind, prompt, worker, depth in steps:
        hashes = block_hashes(prompt, PAGE)
        match kind:
            case "learn":
                blocks.learn(prompt)
            case "stored":
                have[worker] |= set(hashes[:depth])
                blocks.stored(worker, hashes[:depth])
            case "removed":
                deeper = {block for each in PROMPTS for block in chain_after(each, hashes[depth:])}
                gone = sorted(deeper & have[worker])
                have[worker] -= deeper
                blocks.removed(worker, gone)
            case "lost":
                have[worker].clear()
                blocks.lost(worker)
            case "take":
                subscriber.apply(blocks.take())
    for prompt in PROMPTS:
        blocks.learn(prompt)
    subscriber.apply(blocks.take())
    assert set(subscriber.prefixes) == have[WORKERS[0]] | have[WORKERS[1]]
    for prompt in PROMPTS:
        for number, block in enumerate(block_hashes(prompt, PAGE), start=1):
            if block in subscriber.prefixes:
                assert subscriber.prefixes[block] == prompt[: number * PAGE]


def chain_after(prompt: list[int], blocks: list[BlockHash]) -> list[BlockHash]:
    """The blocks of a prompt from the first of `blocks` on."""
    hashes = block_hashes(prompt, PAGE)
    first = next((i for i, block in enumerate(hashes) if block in blocks), len(hashes))
    return hashes[first:]


def test_consecutive_blocks_are_one_event() -> None:
    blocks, prompt = CachedBlocks(PAGE), PROMPTS[0]
    hashes = block_hashes(prompt, PAGE)
    blocks.stored("decode-0", hashes)
    assert blocks.take() == [], "their tokens are not known yet"
    blocks.learn(prompt)
    assert blocks.take() == [BlocksStored(None, hashes, prompt)]
    blocks.learn(PROMPTS[1])
    blocks.stored("decode-1", block_hashes(PROMPTS[1], PAGE))
    assert blocks.take() == [BlocksStored(hashes[1], block_hashes(PROMPTS[1], PAGE)[2:], [7, 8])]


def test_a_block_is_removed_with_its_last_holder() -> None:
    blocks = CachedBlocks(PAGE)
    hashes = block_hashes(PROMPTS[2], PAGE)
    blocks.learn(PROMPTS[2])
    for worker in WORKERS:
        blocks.stored(worker, hashes)
    blocks.take()
    blocks.lost(WORKERS[0])
    assert blocks.take() == []
    blocks.removed(WORKERS[1], hashes[1:])
    assert blocks.take() == [BlocksRemoved(hashes[1:])]


def test_tokens_that_no_worker_stores_are_forgotten_after_a_while() -> None:
    blocks = CachedBlocks(PAGE, unstored=3)
    for start in range(0, 100, PAGE):
        blocks.learn([start, start])
    blocks.stored("decode-0", block_hashes([0, 0], PAGE))
    assert blocks.take() == []
    blocks.stored("decode-0", block_hashes([98, 98], PAGE))
    assert len(blocks.take()) == 1


def test_events_name_salt_adapter_and_media() -> None:
    tokens = [1, 9, 9, 9, 5, 6]
    image = media_keys(b"red", range(3))
    salted = NamedBlocks(namespace=namespace_of(cache_salt="s"), cache_salt="s")
    adapted = NamedBlocks(
        namespace=namespace_of(adapter=b"digest", cache_salt="s"),
        adapter="sql",
        adapter_digest=b"digest",
        cache_salt="s",
    )
    separate = NamedBlocks(namespace=namespace_of(tenant="t"))
    seen = NamedBlocks(keys=(1, *image, 5, 6))
    expected = {
        salted: {0: ("s",)},
        adapted: {0: ("sql", "s"), 1: ("sql",), 2: ("sql",)},
        separate: {0: (separate.namespace.hex(),)},
        seen: {0: (image[0],), 1: (image[1], image[2])},
    }
    names = list[BlockHash]()
    for named, extra in expected.items():
        blocks, hashes = CachedBlocks(PAGE), named.hashes(tokens, PAGE)
        blocks.learn(tokens, named)
        blocks.stored("decode-0", hashes)
        extra_keys = {hashes[place]: keys for place, keys in extra.items()}
        assert blocks.take() == [BlocksStored(None, hashes, tokens, extra_keys, named.adapter)]
        names += hashes
    assert len(set(names)) == len(names)


def test_blocks_before_the_activation_of_an_adapter_are_those_of_the_base_model() -> None:
    tokens = [1, 2, 3, 4, 5, 6]
    key = activation_key(b"digest", 4)
    activated = NamedBlocks(keys=(1, 2, 3, key), adapter="sql", adapter_digest=b"digest", adapter_start=3)
    hashes = activated.hashes(tokens, PAGE)
    assert hashes[0] == block_hashes(tokens, PAGE)[0]
    blocks = CachedBlocks(PAGE)
    blocks.learn(tokens, activated)
    blocks.stored("decode-0", hashes)
    extra = {hashes[1]: ("sql", key), hashes[2]: ("sql",)}
    assert blocks.take() == [
        BlocksStored(None, hashes[:1], tokens[:2]),
        BlocksStored(hashes[0], hashes[1:], tokens[2:], extra, "sql"),
    ]
