"""Which pages of a handoff are written next: arithmetic over the request's block table and the ticket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.kv_groups import NO_PAGE
from kv_transfer.layout import KVLayout
from kv_transfer.planner import Copy, blocks_due, coalesce, state_copy
from kv_transfer.ticket import Ticket


@dataclass(frozen=True, slots=True)
class NextPush:
    """One write: pages of consecutive blocks, and with the last ones the state."""

    blocks: range
    first: int
    """Index in the ticket of the first page of these blocks."""
    count: int
    """Pages that the ticket has for them."""
    present: Sequence[int]
    """Which of those are written, from 0 on; the others fell behind a window before they could be sent."""
    local: Sequence[int]
    """The pages that are read for them."""
    num_tokens: int
    tail_tokens: int
    """Tokens of the last block."""
    copies: Sequence[Copy]


def next_push(
    layout: KVLayout,
    ticket: Ticket,
    table: Sequence[int],
    *,
    pushed: int,
    num_tokens: int,
    complete: bool,
    state: Sequence[int],
) -> NextPush | None:
    """What is final of `num_tokens` tokens and was not sent; None: nothing.

    `table`: of each block a page for every group, or NO_PAGE. Blocks before `pushed` were sent. `complete`:
    the last block is final although it is not full. `state`: pages of the state, once that is final.
    """
    due = blocks_due(layout, done=pushed, num_tokens=num_tokens, complete=complete)
    if not due and not state:
        return None
    order = ticket.order(layout)
    first, pages = order.before(due.start), [table[place] for place in order.places(due)]
    present = [index for index, page in enumerate(pages) if page != NO_PAGE]
    local = [pages[index] for index in present]
    copies = coalesce(local, [ticket.pages[first + index] for index in present], layout.page_bytes)
    if state:
        copies.append(state_copy(layout, state[0], ticket.state[0]))
    end = min(due.stop * layout.page_size, num_tokens)
    return NextPush(
        blocks=due,
        first=first,
        count=len(pages),
        present=present,
        local=local,
        num_tokens=end - due.start * layout.page_size,
        tail_tokens=end - (due.stop - 1) * layout.page_size,
        copies=copies,
    )


def changed(known: tuple[int, ...], pages: tuple[int, ...]) -> bool:
    """Whether pages of a request are others than before. Those behind windows may be gone."""
    if pages[: len(known)] == known:
        return False
    return any(now not in (before, NO_PAGE) for before, now in zip(known, pages, strict=False))
