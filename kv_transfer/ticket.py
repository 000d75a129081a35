"""Tickets: a receiver's permission for a sender to write pages."""

from __future__ import annotations

from dataclasses import dataclass

from kv_transfer.errors import BadTicket, LayoutMismatch
from kv_transfer.layout import KVLayout
from kv_transfer.memory import PoolMemory
from kv_transfer.ticket_pages import TicketPages


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker's KV pool as another worker reaches it. A restarted worker is a new peer."""

    name: str
    """Never reused: worker id and epoch."""
    epoch: int
    metadata: bytes
    """The transport's own address and memory registration."""
    base_address: int
    page_bytes: int
    num_pages: int
    device_index: int
    layout_hash: str

    @classmethod
    def of(cls, name: str, epoch: int, metadata: bytes, memory: PoolMemory, layout: KVLayout) -> Peer:
        return cls(
            name=name,
            epoch=epoch,
            metadata=metadata,
            base_address=memory.address,
            page_bytes=memory.page_bytes,
            num_pages=memory.num_pages,
            device_index=memory.device_index,
            layout_hash=layout.hash,
        )

    def require(self, layout: KVLayout) -> None:
        """Raises LayoutMismatch unless this peer's pages are interchangeable with pages of `layout`."""
        if self.layout_hash != layout.hash or self.page_bytes != layout.page_bytes:
            raise LayoutMismatch(
                f"{self.name} stores KV as {self.layout_hash} ({self.page_bytes} bytes per page), "
                f"this worker as {layout.hash} ({layout.page_bytes}); start both with the same model,"
                " --quantization, --device, --dtype, --kv-cache-dtype,"
                " --page-size and tensor parallelism"
            )


@dataclass(frozen=True, slots=True)
class Ticket:
    """The receiver's permission to write its pages, once, for one handoff."""

    handoff_id: int
    """Never used twice."""
    receiver: Peer
    epoch: int
    """Epoch of the receiver that issued the ticket; a restarted one refuses the handoff."""
    layout_hash: str
    pages: tuple[int, ...]
    """The receiver's pages for tokens from `first_token` on, in the order of `TicketPages`. May be more than
    `num_tokens` need: a request that decodes during the handoff has more tokens at its end."""
    first_token: int
    """A multiple of the page size. Earlier tokens are in the receiver's prefix cache."""
    num_tokens: int
    """Tokens of the request that the receiver has, including cached ones."""
    timeout_s: float
    """The receiver aborts after this long without progress. A duration: the workers share no clock."""
    secret: int
    """Random number drawn by the receiver and part of every message of the handoff, against forged ones."""
    sender: str
    """Name of the peer that may write. A sender that reopened its transport has a new name and must not use
    the ticket: the receiver frees the pages when it detects the end of the old name."""

    state: tuple[int, ...] = ()
    """Where the receiver has the recurrent state of the request, if the model has one: consecutive pages, as
    many as the state takes on one of its ranks."""

    def max_tokens(self, layout: KVLayout) -> int:
        """Most tokens whose KV fits the pages, including cached ones."""
        return self.order(layout).end(len(self.pages)) * layout.page_size

    def order(self, layout: KVLayout) -> TicketPages:
        """What each of the pages holds."""
        return TicketPages(layout, self.first_token, self.num_tokens)

    def require(self, layout: KVLayout) -> None:
        """Raises LayoutMismatch or BadTicket unless the ticket is valid for a sender with `layout`."""
        self.receiver.require(layout)
        if self.layout_hash != layout.hash or self.epoch != self.receiver.epoch:
            raise BadTicket(f"ticket {self.handoff_id:x} disagrees with its own receiver")
        if self.first_token % layout.page_size or not 0 <= self.first_token < self.num_tokens:
            raise BadTicket(
                f"ticket {self.handoff_id:x} is for tokens {self.first_token}..{self.num_tokens}: "
                f"the first must start a page of {layout.page_size} and precede the last"
            )
        needed = self.order(layout).before(layout.num_blocks(self.num_tokens))
        pages = self.pages + self.state
        if len(self.pages) < needed or len(set(pages)) != len(pages):
            raise BadTicket(
                f"ticket {self.handoff_id:x} has {len(self.pages)} pages, not {needed} distinct ones"
            )
        if not _fewest_state_pages(layout) <= len(self.state) <= layout.state_pages:
            raise BadTicket(
                f"ticket {self.handoff_id:x} has {len(self.state)} pages for a state of {layout.state_pages}"
            )
        if self.state and self.state != tuple(range(self.state[0], self.state[-1] + 1)):
            raise BadTicket(f"ticket {self.handoff_id:x} has a state in pieces")
        if min(pages) < 0 or max(pages) >= self.receiver.num_pages:
            raise BadTicket(f"ticket {self.handoff_id:x} has pages outside the pool of {self.receiver.name}")


@dataclass(frozen=True, slots=True)
class HandoffState:
    """State of the request that only the sender has at the end of a handoff.

    With positional randomness (seed, position) this and the request itself are the complete sampling
    state: penalties and stop state follow from the tokens.
    """

    tokens: tuple[int, ...]
    """Tokens sampled by the sender, which follow the ticket's `num_tokens`: one after a prefill, any number
    after a move of a running answer."""
    position: int
    """Number of tokens with transferred KV: the first position that the receiver computes."""
    seed: int
    request_digest: int
    """`request_digest` of the ticket's `num_tokens` tokens, their origin and the sampling parameters."""

    def fits(self, ticket: Ticket, layout: KVLayout) -> bool:
        """Whether at least one token is left to compute for its logits, and the pages have room for it.

        Windows must not reach further back than the ticket has pages for.
        """
        if layout.has_windows and self.position < ticket.num_tokens - 1:
            return False
        return 0 < self.position < min(ticket.num_tokens + len(self.tokens), ticket.max_tokens(layout) + 1)


def _fewest_state_pages(layout: KVLayout) -> int:
    """Fewest state pages of a receiver: it has a rank for each head of the state."""
    if layout.state is None:
        return 0
    heads_of_page = max(1, layout.num_kv_heads // layout.state.heads)
    page_bytes = layout.page_bytes // layout.heads_per_shard * heads_of_page
    return -(-layout.state.head_bytes // page_bytes)
