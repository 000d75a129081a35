"""Groups of layers whose KV is paged alike, and which tokens of each group a request still needs.

The engine allocates by these rules, KV transfer sends by them, the router sizes workers by them. A block is
`page_size` tokens of a request; its KV is one page for each group.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_MOST_GROUPS: Final = 8
"""More groups would waste fewer layers, but make pages small and block tables long."""


NO_PAGE: Final = -1
"""In a request's block table: no page, since no token will see those of a window any more, or since they come
later."""


@dataclass(frozen=True, slots=True)
class KVHeads:
    """Key heads of a layer, and the features of each; there are as many value heads."""

    count: int
    dim: int

    @property
    def features(self) -> int:
        return self.count * self.dim

    def of_rank(self, num_ranks: int) -> KVHeads:
        """The heads that a rank holds; with more ranks than heads, neighbours hold the same one."""
        return KVHeads(max(1, self.count // num_ranks), self.dim)


def page_features(layers: Sequence[int], heads: Sequence[KVHeads]) -> int:
    """Features of a token, keys and values of all layers, that the pages of all groups have room for.

    `layers`: number of layers of each group. Rounded up so that heads of every size fill a page.
    """
    most = max(2 * count * each.features for count, each in zip(layers, heads, strict=True))
    unit = math.lcm(*(each.dim for each in heads))
    return -(-most // unit) * unit


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share a block table. All groups of a model have pages of the same size."""

    layers: tuple[int, ...]
    """The n-th of them is layer n of the group's pages. The last group of a kind may have fewer than a page
    has room for."""
    window: int | None = None
    """How many tokens a token attends to, itself included; None: all before it."""

    latent: bool = False
    """Whether a token has one row of features that stands for its keys and values."""

    heads: KVHeads | None = None
    """Heads of its layers, where groups have different ones; None: all layers of the model have the same."""

    @property
    def kind(self) -> str:
        """Label of the group's kind: "full", "latent" or, for example, "window-1024"."""
        if self.window is not None:
            return f"window-{self.window}"
        return "latent" if self.latent else "full"

    def first_needed(self, position: int) -> int:
        """The first token to which tokens from `position` on attend."""
        return 0 if self.window is None else max(0, position + 1 - self.window)


def full_group(num_layers: int) -> tuple[KVGroup, ...]:
    """The groups of a model of which every layer attends to the whole context."""
    return (KVGroup(tuple(range(num_layers))),)


ONE_GROUP: Final = full_group(1)
"""For those that ask for pages alone, of a model whose layers all attend to the whole context."""


@dataclass(frozen=True, slots=True)
class RequestPages:
    """Most pages that a request takes at a time, by its length. Engines admit and routers place by it."""

    page_size: int = 1
    most_blocks: tuple[int, ...] = (sys.maxsize,)
    """For each group: most blocks of which a request has pages while its prompt is computed."""

    @classmethod
    def of_groups(cls, page_size: int, groups: Sequence[KVGroup], largest_chunk: int | None) -> RequestPages:
        """`largest_chunk`: of a prompt; None: prompts may be computed whole."""

        def most(window: int | None) -> int:
            # With the chunk in flight, and the next one.
            if window is None or largest_chunk is None:
                return sys.maxsize
            return -(-(window + 2 * largest_chunk) // page_size) + 1

        return cls(page_size, tuple(most(group.window) for group in groups))

    def of_blocks(self, blocks: int) -> int:
        return sum([min(blocks, most) for most in self.most_blocks])

    def of(self, num_tokens: int) -> int:
        return self.of_blocks(-(-num_tokens // self.page_size))

    def largest_request(self, num_pages: int, limit: int) -> int:
        """Tokens, at most `limit`, of the largest request that fits."""
        most = -(-limit // self.page_size)
        blocks = bisect_right(range(most + 1), num_pages, key=self.of_blocks) - 1
        return min(limit, blocks * self.page_size)

    def tokens_in(self, num_pages: int, length: int) -> int:
        """Tokens of as many requests of `length` tokens as fit beside each other, with a share of one."""
        return num_pages * length // self.of(length)


def group_layers(
    windows: Sequence[int | None], context: int, heads: Sequence[KVHeads] = (), widths: Sequence[int] = ()
) -> tuple[KVGroup, ...]:
    """Cut the layers with these windows into groups of equal size, the last of each kind padded.

    Of the sizes that give few groups, takes the one with which a request of `context` tokens needs the least
    memory; of equal ones the largest. (vLLM's hybrid KV cache manager cuts layers in the same way.)

    `heads`, `widths`: of each layer, where layers have different heads: its heads, and its features in the
    whole model, of which pages of all groups have the same number, as near as whole layers come to it.
    """
    kinds: dict[tuple[int | None, int], list[int]] = {}
    unit = math.gcd(*widths) if widths else 1
    for layer, window in enumerate(windows):
        kinds.setdefault((window, widths[layer] // unit if widths else 1), []).append(layer)

    def num_groups(size: int) -> int:
        return sum(-(-len(layers) // (size // kind[1])) for kind, layers in kinds.items())

    def held(size: int) -> int:
        """Layers of the smallest width times tokens."""
        return sum(
            -(-len(layers) // (size // kind[1])) * size * min(kind[0] or context, context)
            for kind, layers in kinds.items()
        )

    longest = max(len(layers) * kind[1] for kind, layers in kinds.items())
    fewest = max(_MOST_GROUPS, num_groups(longest))
    size = min(
        (size for size in range(max(width for _, width in kinds), longest + 1) if num_groups(size) <= fewest),
        key=lambda size: (held(size), -size),
    )
    return tuple(
        KVGroup(
            tuple(layers[begin : begin + size // kind[1]]), kind[0], heads=heads[layers[0]] if heads else None
        )
        for kind, layers in kinds.items()
        for begin in range(0, len(layers), size // kind[1])
    )


def window_shares(groups: Sequence[KVGroup]) -> tuple[tuple[int, float], ...]:
    """The windows, each with the share of the groups' layers that have it."""
    total = sum(len(group.layers) for group in groups)
    layers: dict[int, int] = {}
    for group in groups:
        if group.window is not None:
            layers[group.window] = layers.get(group.window, 0) + len(group.layers)
    return tuple((window, count / total) for window, count in layers.items())


def kept_places(groups: Sequence[KVGroup], page_size: int, position: int, blocks: range) -> Sequence[int]:
    """Places in a block table of the pages that a request which continues at `position` needs of `blocks`.

    Page g of block i is at place i * len(groups) + g.
    """
    stride = len(groups)
    first = [group.first_needed(position) // page_size for group in groups]
    if max(first) <= blocks.start:
        return range(blocks.start * stride, blocks.stop * stride)
    return [block * stride + g for block in blocks for g in range(stride) if block >= first[g]]
