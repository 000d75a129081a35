"""Page digests, with which a receiver verifies transferred pages.

Pages are digested on their device. A page digest covers only the page's valid tokens: the rest of the last
page is undefined and may change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import numpy as np
import xxhash

from kv_transfer.integrity.host_states import HostStates
from kv_transfer.integrity.sum64 import HostSum64
from kv_transfer.layout import SUM64, XXH3, KVLayout
from kv_transfer.memory import PoolMemory


class PageDigester(Protocol):
    def digest(self, pages: Sequence[int], tail_tokens: int, group: int = 0) -> list[int]:
        """64-bit digests of pool pages; of the last one, only of its first `tail_tokens` tokens, as a page of
        this group.
        """

    def digest_state(self, first: int) -> list[int]:
        """64-bit digests of the recurrent state that begins at page `first`, one for each of its heads."""


class HostDigester:
    """xxh3-64 over pages in host memory, at about memory bandwidth. Releases the GIL."""

    def __init__(self, memory: PoolMemory, layout: KVLayout) -> None:
        memory.require_page_bytes(layout.page_bytes)
        self._page_size = layout.page_size
        flat = np.frombuffer(memory.host_bytes(), dtype=np.uint8)
        self._pages = flat.reshape(memory.num_pages, layout.page_bytes)
        self._layout = layout
        self._states = HostStates(flat, layout)

    def digest(self, pages: Sequence[int], tail_tokens: int, group: int = 0) -> list[int]:
        digests = [xxhash.xxh3_64_intdigest(self._pages[page].data) for page in pages]
        if digests and tail_tokens != self._page_size:
            rows = self._pages[pages[-1]].reshape(-1, self._page_size, self._layout.token_bytes_of(group))
            valid = np.ascontiguousarray(rows[:, :tail_tokens])
            digests[-1] = xxhash.xxh3_64_intdigest(valid.data)
        return digests

    def digest_state(self, first: int) -> list[int]:
        return [xxhash.xxh3_64_intdigest(head.data) for head in self._states.by_head(first)]


_HOST: Final[dict[str, Callable[[PoolMemory, KVLayout], PageDigester]]] = {
    XXH3: HostDigester,
    SUM64: HostSum64,
}


def host_digester(memory: PoolMemory, layout: KVLayout) -> PageDigester:
    """Computes the digests that `layout` names, over memory that the host can read."""
    digester = _HOST.get(layout.digest)
    if digester is None:
        raise ValueError(f"page digest {layout.digest!r} is not one of {', '.join(_HOST)}")
    return digester(memory, layout)


def request_digest(keys: Sequence[int], state: Iterable[bytes]) -> int:
    """Digest of a request, which must be equal on both workers of a handoff.

    `keys`: of the tokens with transferred KV; `state`: their namespace, and everything else that determines
    the next token, such as the encoded sampling parameters.
    """
    digest = xxhash.xxh3_64(np.asarray(keys, dtype="<i8").tobytes(), seed=len(keys))
    for piece in state:
        digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.intdigest()
