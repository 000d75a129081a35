"""Slots for the recurrent states of requests, and checkpoints of states in the prefix cache.

A state covers all tokens before it, and every step changes it, unlike a page. A request has a slot of its
own, which only its steps write. A prefix can be reused where a node of the radix tree owns a checkpoint: a
slot that is no longer written, with the state after the tokens of that node. The first chunk after a hit
reads the checkpoint and writes the request's slot.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol

from engine.core.request import Request
from engine.core.request_state import NO_SLOT, CheckpointSave, RequestState
from engine.errors import PageLeak
from engine.kv.cache.pages import PageCounts, PagePool, PageState
from engine.kv.cache.radix import Match
from engine.kv.cache.radix_node import RadixNode
from engine.kv.cache.spared import NOTHING_SPARED, SparedBlocks


class CheckpointCopies(Protocol):
    """Copies of checkpoints on tiers."""

    def checkpoint_cached(self, request: Request, node: RadixNode, slot: int) -> None:
        """The cache owns a checkpoint of a request after the last block of `node` from now on."""

    def checkpoint_evicted(self, slot: int) -> bool:
        """The cache has given one up. Whether it is LEAVING."""

    def is_copying(self, slot: int) -> bool:
        """Whether a copy down reads it."""


class StateSlots:
    """Every slot is free, or owned by one request, one node (as a checkpoint) or one handoff.

    Slots have the states of pages: a checkpoint is CACHED. Checkpoints are evicted least recently used first,
    whenever a slot is wanted and none is free, except those that a chunk has yet to read; those of retained
    blocks after all others. For a model without recurrent states there are no slots, and requests get none.
    """

    def __init__(self, num_slots: int, page_size: int, spared: SparedBlocks = NOTHING_SPARED) -> None:
        self.pool = PagePool(num_slots)
        self.used = num_slots > 0
        """Whether the model has recurrent states."""
        self._page_size = page_size
        self._spared = spared
        self._checkpoints: OrderedDict[RadixNode, int] = OrderedDict()
        """Checkpoint slots, least recently used first."""
        self._readers: Counter[int] = Counter()
        """Requests whose next chunk reads a checkpoint, or that it is kept for, by its slot."""
        self.copies: CheckpointCopies | None = None

    # ------------------------------------------------------------------------------ a request's slot

    def begin(
        self, request: Request, found: Match | None, branch: int = 0, state: PageState = PageState.HELD
    ) -> bool:
        """Give a request a slot; its state continues that of `found.node`. False if there is none.

        `found`: a result of `usable`; None: the state begins empty, or a peer writes it. `branch`: pages that
        the cache holds of the request.
        """
        if not self.used:
            return True
        source = NO_SLOT if found is None else self._checkpoints.get(found.node, NO_SLOT)
        if source != NO_SLOT:
            self._readers[source] += 1  # before a slot is taken, which may evict a checkpoint
        slot = self.take(request.id, state)
        if slot == NO_SLOT:
            self.unread(source)
            return False
        resumed = 0 if found is None else found.node.depth * self._page_size
        request.state = RequestState(slot, source, resumed, branch * self._page_size)
        return True

    def computed(self, request: Request, start: int) -> None:
        """The chunk at token `start` has run: it no longer reads a checkpoint."""
        state = request.state
        if state is not None and state.source != NO_SLOT and start == state.resumed:
            self.unread(state.source)
            state.source = NO_SLOT

    def release(self, request: Request, owner: int, state: PageState = PageState.HELD) -> None:
        """Free the slot of a request, and checkpoints that are not in the cache yet."""
        if request.state is None:
            return
        self.unread(request.state.source)
        self.pool.give_back([request.state.slot], owner, state)
        self.pool.give_back([save.slot for save in request.state.saves], owner)
        request.state = None

    # ------------------------------------------------------------------------------ checkpoints

    def usable(self, found: Match) -> Match:
        """The part of a match in the whole tree that ends at a checkpoint; the root if there is none."""
        if not self.used:
            return found
        node = found.node
        while node.parent is not None and node not in self._checkpoints:
            node = node.parent
        if node in self._checkpoints:
            self._checkpoints.move_to_end(node)
        return Match(node, node.depth, found.pages[: node.depth])

    def usable_depth(self, found: Match) -> int:
        """Pages of a match without `touch` up to its last checkpoint. Changes nothing."""
        if not self.used:
            return found.blocks
        node, matched = found.node, found.blocks
        while node.parent is not None and (node not in self._checkpoints or node.depth > matched):
            node = node.parent
        return node.depth

    def until_checkpoint(self, request: Request, length: int) -> int:
        """`length` tokens of the request's next chunk, or fewer, so that it ends where prompts branch.

        It does not end after one token, which would save nothing; see `plan_checkpoint`.
        """
        start, state = request.num_computed, request.state
        if state is None or not start + 1 < state.branch < min(start + length, self._last(request)):
            return length
        return state.branch - start

    def plan_checkpoint(self, request: Request, start: int, end: int) -> None:
        """Let the chunk of tokens [start, end) save a checkpoint if it is worth one and a slot can be had.

        Worth one is where a prompt branches from others, and its last page boundary: a later prompt that
        begins with this one continues there, as does this one after a preemption. A chunk of one token runs
        with the decodes, and their kernels write no checkpoints.
        """
        state = request.state
        if state is None or end - start == 1:
            return
        last = self._last(request)
        position = last if start < last <= end else end
        if position not in (last, state.branch):
            return
        slot = self.take(request.id, PageState.HELD, spare=not request.is_retained)
        if slot != NO_SLOT:
            state.saves.append(CheckpointSave(position, slot))

    def attach(self, request: Request, save: CheckpointSave, node: RadixNode) -> None:
        """The cache owns a checkpoint of the request from now on, unless it has one of the same tokens."""
        assert request.state is not None
        request.state.saves.remove(save)
        if node.depth * self._page_size != save.position or not self._keep(node, save.slot, request.id):
            self.pool.give_back([save.slot], request.id)
        elif self.copies is not None:
            self.copies.checkpoint_cached(request, node, save.slot)

    def arrived(self, request: Request, node: RadixNode, slot: int, owner: int) -> None:
        """The same of a state that has arrived in a slot and is verified: that of `node`."""
        self.pool.arrived([slot], owner, owner)
        if not self._keep(node, slot, owner):
            self.pool.give_back([slot], owner)
        elif self.copies is not None:
            self.copies.checkpoint_cached(request, node, slot)

    def drop(self, node: RadixNode) -> None:
        """The cache drops the last pages of a node, and with them its checkpoint."""
        slot = self._checkpoints.pop(node, NO_SLOT)
        if slot == NO_SLOT:
            return
        if self.copies is not None and self.copies.checkpoint_evicted(slot):
            self.pool.leave([slot])
        else:
            self.pool.from_cache([slot])

    def take_for_checkpoint(self, owner: int) -> int:
        """A slot for a state that comes from elsewhere, IN_FLIGHT; NO_SLOT if there is none.

        The request that continues the state takes another one.
        """
        return NO_SLOT if self.pool.num_pages < 2 else self.take(owner, PageState.IN_FLIGHT)

    def depths(self, found: Match) -> set[int]:
        """Blocks of a match in the whole tree after which there is a checkpoint."""
        depths, node = set[int](), found.node
        while node.parent is not None:
            if node in self._checkpoints and node.depth <= found.blocks:
                depths.add(node.depth)
            node = node.parent
        return depths

    def read(self, node: RadixNode) -> int:
        """Keep the checkpoint of a node until `unread`; its slot, or NO_SLOT if there is none."""
        slot = self._checkpoints.get(node, NO_SLOT)
        if slot != NO_SLOT:
            self._readers[slot] += 1
        return slot

    # ------------------------------------------------------------------------------ accounts

    @property
    def num_available(self) -> int:
        """Slots that are free, or evictable checkpoints."""
        return self.pool.num_free + len(self._checkpoints) - len(self._readers)

    def check(
        self,
        owners: Sequence[Request],
        lent: Iterable[Request],
        arriving: Iterable[int] = (),
        kept: Iterable[int] = (),
    ) -> PageCounts:
        """Check that every slot has exactly one owner. Raises PageLeak. O(slots).

        `owners`: all requests that may have a slot; `lent`: those whose slot a peer may write; `arriving`:
        slots for states of arriving prefixes; `kept`: checkpoints for each reader without a slot.
        """
        counts = self.pool.recount()
        held = [slot for request in owners if request.state for slot in request.state.written]
        cached = list(self._checkpoints.values())
        sources = Counter(r.state.source for r in owners if r.state and r.state.source != NO_SLOT)
        sources.update(kept)
        incoming = [slot for request in lent if request.state for slot in request.state.written]
        incoming += arriving
        accounts = {
            "counters": (self.pool.counts(), counts),
            "held": (len(set(held)), len(held), counts.held),
            "cached": (len(set(cached)), len(cached), counts.cached),
            "reserved": (len(set(incoming)), len(incoming), counts.in_flight + counts.quarantined),
        }
        if sources != self._readers or not sources.keys() <= set(cached):
            raise PageLeak(f"checkpoints {self._readers} are to be read, but requests read {sources}")
        for name, values in accounts.items():
            if len(set(values)) != 1:
                raise PageLeak(f"state slots {name} do not add up: {values}; {counts}")
        return counts

    # ------------------------------------------------------------------------------ inside

    def _last(self, request: Request) -> int:
        """The last page boundary that leaves a token to compute."""
        return (request.num_tokens - 1) // self._page_size * self._page_size

    def take(self, owner: int, state: PageState, *, spare: bool = False) -> int:
        """A free slot, if need be that of the least recently used checkpoint; NO_SLOT if there is none.

        `spare`: not at the cost of a retained one. O(checkpoints).
        """
        if not self.pool.num_free:
            unused = [node for node, slot in self._checkpoints.items() if not self._is_used(slot)]
            others = (node for node in unused if not self._is_retained(node))
            if (oldest := next(others, None if spare else next(iter(unused), None))) is None:
                return NO_SLOT
            self.drop(oldest)
        return self.pool.take(1, owner, state)[0]

    def _is_retained(self, node: RadixNode) -> bool:
        return bool(node.blocks) and node.blocks[-1] in self._spared

    def _is_used(self, slot: int) -> bool:
        return slot in self._readers or (self.copies is not None and self.copies.is_copying(slot))

    def _keep(self, node: RadixNode, slot: int, owner: int) -> bool:
        """Make a slot the checkpoint of a node, unless it has one."""
        if node in self._checkpoints:
            return False
        self.pool.to_cache([slot], owner)
        self._checkpoints[node] = slot
        return True

    def unread(self, slot: int) -> None:
        """One request fewer will read this checkpoint."""
        if slot != NO_SLOT:
            self._readers[slot] -= 1
            if not self._readers[slot]:
                del self._readers[slot]
