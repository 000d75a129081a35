"""Page digests of a pool on a GPU, computed on the GPU: only 8 bytes per page are copied to the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeAlias

import torch

from kv_transfer.integrity.sum64 import MASK, Words
from kv_transfer.layout import KVLayout

_WORD_TYPES: Final = {4: torch.int32, 2: torch.int16, 1: torch.uint8}
_BATCH: Final = 1024
"""Pages per launch. Pinned memory for them is reused, since allocating it stalls the device."""
_Buffers: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Pinned memory of a launch: its jobs, and its sums."""
PageSums: TypeAlias = Callable[[torch.Tensor, torch.Tensor, Words], torch.Tensor]
"""See `sum64_triton.page_sums`."""
_HIGH_PRIORITY: Final = -1
"""Stream priority: thread blocks of digests are scheduled before waiting ones of a step's kernels."""


class DeviceDigester:
    """sum64 on a CUDA stream of its own, so that it does not queue behind the step in flight.

    `digest` waits for its own result only, and releases the GIL meanwhile. It needs no event of the engine's
    stream, because pages are complete when they are digested. The sender digests pages after the engine has
    waited for the step that computed them. The receiver digests pages after the notification of their write,
    and kernels launched after a notification see the written bytes. Copies of tiers pass their event.
    """

    def __init__(self, pool: torch.Tensor, layout: KVLayout, page_sums: PageSums | None = None) -> None:
        """`pool`: contiguous, pages along its first axis. Compiles the kernel, unless `page_sums` is given
        in its place, for a pool on a CPU."""
        self._words = [Words.of(layout, group) for group in range(len(layout.groups))]
        self._layout = layout
        self._bytes = pool.flatten().view(torch.uint8)
        self._pool = pool.flatten(1).view(_WORD_TYPES[self._words[0].word_bytes])
        if self._pool.shape[1] != self._words[0].page:
            raise ValueError(
                f"the pool has {self._pool[0].nbytes} bytes per page, its layout {layout.page_bytes}"
            )
        self._stream: torch.cuda.Stream | None = None
        if page_sums is None:
            from kv_transfer.integrity import sum64_triton

            page_sums = sum64_triton.page_sums
            self._stream = torch.cuda.Stream(pool.device, _HIGH_PRIORITY)  # type: ignore[no-untyped-call]
        self._page_sums = page_sums
        self._buffers: deque[_Buffers] = deque()
        """Buffers that no launch uses."""
        self.digest([0], layout.page_size)
        if layout.state is not None:
            self.digest_state(0)

    def digest(self, pages: Sequence[int], tail_tokens: int, group: int = 0) -> list[int]:
        """See `digest.PageDigester`. One launch for up to 1024 pages. For one thread at a time."""
        return self._begin(self._pool, self._words[group], pages, tail_tokens)()

    def digest_state(self, first: int) -> list[int]:
        """See `digest.PageDigester`. Copies the state, so that each head is like a page."""
        layout = self._layout
        assert layout.state is not None
        words, heads = Words.of_state(layout.state), len(layout.state_heads)
        begin = first * layout.page_bytes
        state = self._bytes[begin : begin + layout.state_bytes].view(_WORD_TYPES[words.word_bytes])
        with self._on_stream():
            rows = layout.state.by_head(state, heads, words.word_bytes)
            return self._begin(torch.cat(rows, dim=1), words, range(heads), words.tokens)()

    def begin(
        self, pages: Sequence[int], tail_tokens: int, after: torch.cuda.Event | None = None
    ) -> Callable[[], list[int]]:
        """Digest pages once `after` has happened. The function returned waits for the digests, for one with
        `after` without a spinning CPU, and must be called. Both for one thread at a time."""
        return self._begin(self._pool, self._words[0], pages, tail_tokens, after)

    def _begin(
        self,
        pool: torch.Tensor,
        words: Words,
        pages: Sequence[int],
        tail_tokens: int,
        after: torch.cuda.Event | None = None,
    ) -> Callable[[], list[int]]:
        ended: torch.cuda.Event | None = None
        with self._on_stream():
            if after is not None:
                after.wait()
            launches = [
                self._launch(
                    pool,
                    words,
                    pages[begin : begin + _BATCH],
                    tail_tokens if begin + _BATCH >= len(pages) else words.tokens,
                )
                for begin in range(0, len(pages), _BATCH)
            ]
            if self._stream is not None:
                ended = torch.cuda.Event(blocking=after is not None)  # type: ignore[no-untyped-call]
                ended.record()

        def wait() -> list[int]:
            if ended is not None:
                ended.synchronize()
            digests: list[int] = []
            for buffers, count in launches:
                digests += [value & MASK for value in buffers[1][:count].tolist()]
                self._buffers.append(buffers)
            return digests

        return wait

    def _launch(
        self, pool: torch.Tensor, words: Words, pages: Sequence[int], tail_tokens: int
    ) -> tuple[_Buffers, int]:
        buffers = self._buffers.pop() if self._buffers else self._new_buffers()
        jobs, sums = buffers[0][: len(pages)], buffers[1][: len(pages)]
        jobs[:, 0] = torch.tensor(pages, dtype=torch.int32)
        jobs[:, 1] = words.tokens
        jobs[-1, 1] = tail_tokens
        there = jobs.to(pool.device, non_blocking=True)
        sums.copy_(self._page_sums(pool, there, words), non_blocking=True)
        return buffers, len(pages)

    def _new_buffers(self) -> _Buffers:
        pinned = self._stream is not None
        return (
            torch.empty((_BATCH, 2), dtype=torch.int32, pin_memory=pinned),
            torch.empty(_BATCH, dtype=torch.int64, pin_memory=pinned),
        )

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
