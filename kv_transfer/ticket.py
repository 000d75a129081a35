"""Tickets: a receiver's permission for a sender to write pages."""

from __future__ import annotations

from dataclasses import dataclass

from kv_transfer.errors import BadTicket, LayoutMismatch
from kv_transfer.layout import KVLayout
from kv_transfer.memory import PoolMemory

__all__ = ["Final", "Peer", "Ticket"]


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker's KV pool as another worker reaches it. A restarted worker is a new peer."""

    name: str
    """Unique for ever: worker id and epoch."""
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
                f"{self.name} stores KV as {self.layout_hash} ({self.page_bytes} bytes a page), "
                f"this worker as {layout.hash} ({layout.page_bytes}); start both with the same weights "
                "(--model, at one revision), --device, --dtype, --page-size and tensor parallelism"
            )


@dataclass(frozen=True, slots=True)
class Ticket:
    """The receiver's permission to write its pages, once, for one handoff."""

    handoff_id: int
    """Never used twice."""
    receiver: Peer
    epoch: int
    """Of the receiver that issued it; any other incarnation refuses the handoff."""
    layout_hash: str
    pages: tuple[int, ...]
    """The receiver's pages for tokens from `first_token` on, in order. There may be more than `num_tokens`
    need: a request that goes on while its KV travels has more tokens in the end."""
    first_token: int
    """Start of a page. Earlier tokens are in the receiver's prefix cache already."""
    num_tokens: int
    """Tokens of the request that the receiver knows, the cached ones included."""
    timeout_s: float
    """The receiver aborts after this long without progress. A duration: the workers share no clock."""
    secret: int
    """Random number of the receiver, part of every message about this handoff: tickets cannot be forged."""
    sender: str
    """Name of the peer that may write. A sender that opened its transport anew has another name, and must not
    use the ticket: the end of the old name gives the pages back."""

    def max_tokens(self, layout: KVLayout) -> int:
        """Tokens that the request may have KV for when it is handed over."""
        return self.first_token + len(self.pages) * layout.page_size

    def require(self, layout: KVLayout) -> None:
        """Raises LayoutMismatch or BadTicket unless the sender may act on it, byte for byte."""
        self.receiver.require(layout)
        if self.layout_hash != layout.hash or self.epoch != self.receiver.epoch:
            raise BadTicket(f"ticket {self.handoff_id:x} disagrees with its own receiver")
        if self.first_token % layout.page_size or not 0 <= self.first_token < self.num_tokens:
            raise BadTicket(
                f"ticket {self.handoff_id:x} asks for tokens {self.first_token}..{self.num_tokens}: "
                f"the first must start a page of {layout.page_size} and precede the last"
            )
        needed = layout.num_pages(self.num_tokens) - self.first_token // layout.page_size
        if len(self.pages) < needed or len(set(self.pages)) != len(self.pages):
            raise BadTicket(
                f"ticket {self.handoff_id:x} names {len(self.pages)} pages, not {needed} distinct ones"
            )
        if min(self.pages) < 0 or max(self.pages) >= self.receiver.num_pages:
            raise BadTicket(
                f"ticket {self.handoff_id:x} names pages outside the pool of {self.receiver.name}"
            )


@dataclass(frozen=True, slots=True)
class Final:
    """What only the sender knows when the last KV of a handoff is computed.

    With positional randomness (seed, position) this and the request itself are the complete sampling
    state: penalties and stop state follow from the tokens.
    """

    tokens: tuple[int, ...]
    """Sampled by the sender, and unknown to the receiver: they follow the ticket's `num_tokens`. One after a
    prompt, any number after a running answer, none where the receiver computes the rest of a prompt."""
    position: int
    """The number of tokens whose KV is handed over. The receiver computes from this one on."""
    seed: int
    request_digest: int
    """Of the ticket's `num_tokens` tokens and the sampling parameters (`digest.request_digest`)."""

    def fits(self, ticket: Ticket, layout: KVLayout) -> bool:
        """Whether at least one token, whose logits are wanted, is left to compute, and there is room."""
        return 0 < self.position < min(ticket.num_tokens + len(self.tokens), ticket.max_tokens(layout) + 1)
