"""Plans the copies of a handoff. Pure arithmetic: no tensors, no sockets, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kv_transfer.layout import KVLayout


@dataclass(frozen=True, slots=True)
class Copy:
    """One contiguous write. Offsets and length are bytes from the start of each side's pool."""

    local: int
    remote: int
    length: int
    is_state: bool = False
    """Whether this is a whole state, which ranks cut otherwise than pages."""


def blocks_due(layout: KVLayout, *, done: int, num_tokens: int, complete: bool) -> range:
    """Indices of a request's blocks that can be sent now.

    Blocks before `done` were sent already. A block is sent once, when its last token is computed; the partly
    filled last one is sent when the whole prompt is `complete`.
    """
    end = layout.num_blocks(num_tokens) if complete else num_tokens // layout.page_size
    return range(done, max(done, end))


def coalesce(local: Sequence[int], remote: Sequence[int], page_bytes: int) -> list[Copy]:
    """Whole-page copies `local[i] -> remote[i]`; pages adjacent on both sides become one copy.

    Fresh pools hand out pages in order, so a chunk is often a single copy. O(pages).
    """
    if len(local) != len(remote):
        raise ValueError(f"{len(local)} local pages cannot be copied to {len(remote)} remote pages")
    copies: list[Copy] = []
    start = 0
    for i in range(1, len(local) + 1):
        if i == len(local) or local[i] != local[i - 1] + 1 or remote[i] != remote[i - 1] + 1:
            length = (i - start) * page_bytes
            copies.append(Copy(local[start] * page_bytes, remote[start] * page_bytes, length))
            start = i
    return copies


def plan_shard_copies(
    source: KVLayout, target: KVLayout, local: Sequence[int], remote: Sequence[int]
) -> list[Copy]:
    """Copies of the KV heads that both `source` and `target` hold, from source pages to target pages.

    The two are shards of one model under different tensor parallelism. Every head that both hold is
    copied by the lowest source rank that holds it, so all source ranks together write each byte of a
    target page exactly once. Empty if this source rank has nothing to copy to this target.
    """
    if replace(target, tp_size=source.tp_size, tp_rank=source.tp_rank) != source:
        raise ValueError("the shards differ in more than their tensor parallelism")
    if _is_replica(source):
        return []
    if (source.first_head, source.heads_per_shard) == (target.first_head, target.heads_per_shard):
        return coalesce(local, remote, source.page_bytes)
    begin = max(source.first_head, target.first_head)
    end = min(source.first_head + source.heads_per_shard, target.first_head + target.heads_per_shard)
    if begin >= end:
        return []
    if source.has_other_heads:
        raise ValueError("pages of groups with different heads cannot be cut; use equal numbers of ranks")
    length = (end - begin) * source.head_bytes
    copies: list[Copy] = []
    for mine, theirs in zip(local, remote, strict=True):
        for block in range(source.page_layers * 2):  # keys and values of each layer
            my_head = block * source.heads_per_shard + begin - source.first_head
            their_head = block * target.heads_per_shard + begin - target.first_head
            copies.append(
                Copy(
                    mine * source.page_bytes + my_head * source.head_bytes,
                    theirs * target.page_bytes + their_head * target.head_bytes,
                    length,
                )
            )
    return copies


def state_copy(layout: KVLayout, local: int, remote: int) -> Copy:
    """The whole state of a request, from the pages that begin with `local` to those from `remote` on."""
    size = layout.page_bytes
    return Copy(local * size, remote * size, layout.state_bytes, is_state=True)


def plan_state_copies(source: KVLayout, target: KVLayout, local: int, remote: int) -> list[Copy]:
    """Copies of the heads of a state that both shards hold. `local`, `remote`: where it begins, as a page.

    The source ranks together write each byte of a target's state exactly once.
    """
    if replace(target, tp_size=source.tp_size, tp_rank=source.tp_rank) != source or source.state is None:
        raise ValueError("the shards are not of the same state")
    mine, theirs = source.state_heads, target.state_heads
    begin, end = max(mine.start, theirs.start), min(mine.stop, theirs.stop)
    if begin >= end:
        return []
    here, there = local * source.page_bytes, remote * target.page_bytes
    if mine == theirs:
        return [Copy(here, there, source.state_bytes)]
    starts = zip(
        source.state.rows, source.state.starts(len(mine)), source.state.starts(len(theirs)), strict=True
    )
    return [
        Copy(
            here + my_start + (begin - mine.start) * row,
            there + their_start + (begin - theirs.start) * row,
            (end - begin) * row,
        )
        for row, my_start, their_start in starts
    ]


def _is_replica(shard: KVLayout) -> bool:
    """Whether a lower rank holds the same heads."""
    return shard.tp_rank > 0 and replace(shard, tp_rank=shard.tp_rank - 1).first_head == shard.first_head
