"""Groups of layers whose KV is paged alike, and which tokens of each group a request still needs.

The engine allocates by these rules, KV transfer sends by them, the router sizes workers by them. A block is
`page_size` tokens of a request; its KV is one page for each group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["NO_PAGE", "ONE_GROUP", "KVGroup", "full_group", "group_layers", "kept_pages", "kept_places"]

_MOST_GROUPS: Final = 8
"""More groups would waste fewer layers, but make pages small and block tables long."""


NO_PAGE: Final = -1
"""In a request's block table: no page, since no token will see those of a window any more, or since they come
later."""


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share a block table. All groups of a model have pages of the same size."""

    layers: tuple[int, ...]
    """The n-th of them is layer n of the group's pages. The last group of a kind may have fewer than a page
    has room for."""
    window: int | None = None
    """How many tokens a token attends to, itself included; None: all before it."""

    @property
    def kind(self) -> str:
        """Label of the group's kind, such as "full" or "window-1024"."""
        return "full" if self.window is None else f"window-{self.window}"

    def first_needed(self, position: int) -> int:
        """The first token to which tokens from `position` on attend."""
        return 0 if self.window is None else max(0, position + 1 - self.window)


def full_group(num_layers: int) -> tuple[KVGroup, ...]:
    """The groups of a model of which every layer attends to the whole context."""
    return (KVGroup(tuple(range(num_layers))),)


ONE_GROUP: Final = full_group(1)
"""For those that ask for pages alone, of a model whose layers all attend to the whole context."""


def group_layers(windows: Sequence[int | None], context: int) -> tuple[KVGroup, ...]:
    """Cut the layers with these windows into groups of equal size, the last of each kind padded.

    Of the sizes that give few groups, takes the one with which a request of `context` tokens needs the least
    memory; of equal ones the largest. (vLLM's hybrid KV cache manager cuts layers in the same way.)
    """
    kinds: dict[int | None, list[int]] = {}
    for layer, window in enumerate(windows):
        kinds.setdefault(window, []).append(layer)

    def num_groups(size: int) -> int:
        return sum(-(-len(layers) // size) for layers in kinds.values())

    def held(size: int) -> int:
        """Layers times tokens."""
        return sum(
            -(-len(layers) // size) * size * min(window or context, context)
            for window, layers in kinds.items()
        )

    longest = max(map(len, kinds.values()))
    fewest = max(_MOST_GROUPS, num_groups(longest))
    size = min(
        (size for size in range(1, longest + 1) if num_groups(size) <= fewest),
        key=lambda size: (held(size), -size),
    )
    return tuple(
        KVGroup(tuple(layers[begin : begin + size]), window)
        for window, layers in kinds.items()
        for begin in range(0, len(layers), size)
    )


def kept_places(groups: Sequence[KVGroup], page_size: int, position: int, blocks: range) -> Sequence[int]:
    """Places in a block table of the pages that a request which continues at `position` needs of `blocks`.

    Page g of block i is at place i * len(groups) + g.
    """
    stride = len(groups)
    first = [group.first_needed(position) // page_size for group in groups]
    if max(first) <= blocks.start:
        return range(blocks.start * stride, blocks.stop * stride)
    return [block * stride + g for block in blocks for g in range(stride) if block >= first[g]]


def kept_pages(groups: Sequence[KVGroup], page_size: int, num_tokens: int) -> int:
    """Pages that hold the KV which a request of `num_tokens` tokens needs in order to continue."""
    blocks = -(-num_tokens // page_size)
    return sum(blocks - group.first_needed(num_tokens) // page_size for group in groups)
