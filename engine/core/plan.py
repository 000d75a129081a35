"""What one step computes: the scheduler's output, the batch builder's input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from engine.core.adapters import Filling
from engine.core.request import Request, TokenId


class ChunkKind(Enum):
    """What a chunk is to the scheduler, the accounts of a step and the cost of it."""

    PREFILL = "prefill"
    """Several tokens of a prompt, or of a preempted request's answer."""
    DECODE = "decode"
    """One token. The last token of a prompt, computed alone, is one too: it costs what a decode costs."""
    VERIFY = "verify"
    """A decode and drafted tokens after it, each of which samples the token that comes after it."""


class Chunk(NamedTuple):
    """Tokens [start, start + length) of one request.

    A tuple, since hundreds are made for every step: a frozen dataclass takes more than twice as long.
    """

    request: Request
    slot: int
    """Slot of the request when planned; the request may have ended before all of the step is enqueued."""
    start: int
    length: int
    output_index: int | None
    """Where in `request.output` the sampled token goes; None for an inner chunk, and for a prompt that is
    read: these sample none."""
    num_scored: int = 0
    """Rows whose logits score the token that follows them: those before the one that samples, or the last
    ones of an inner chunk. 1 if it ends a prompt that is read: its last row."""
    admission: int = 0
    """`request.admissions` when planned. Later, the request's pages may be others."""
    kind: ChunkKind = ChunkKind.DECODE
    draft: tuple[TokenId, ...] = ()
    """Guesses of the tokens after the first one of a verify chunk. In a row of it: the guesses up to its own.
    """

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def samples(self) -> bool:
        return self.output_index is not None

    def rows(self) -> list[Chunk]:
        """A verify chunk as one decode for each of its tokens; any other chunk as it is."""
        output, draft = self.output_index, self.draft
        if self.kind is not ChunkKind.VERIFY or output is None:
            return [self]
        request, slot, start, length, _, scored, admission, kind, _ = self
        return [
            chunk_of((request, slot, start + j, 1, output + j, scored, admission, kind, draft[:j]))
            for j in range(length)
        ]

    @property
    def ends_request(self) -> bool:
        """Whether its request ends with it, with numbers from its prompt and without a token."""
        return self.request.read is not None and self.end == len(self.request.prompt)

    @property
    def is_current(self) -> bool:
        """Whether its request was not preempted and begun anew since it was planned."""
        return self.admission == self.request.admissions

    @property
    def scored(self) -> range:
        """Positions of the rows whose logits score the token that follows."""
        end = self.end - self.samples
        return range(end - self.num_scored, end)


_Fields: TypeAlias = tuple[Request, int, int, int, int | None, int, int, ChunkKind, tuple[TokenId, ...]]
chunk_of: Final[Callable[[_Fields], Chunk]] = partial(tuple.__new__, Chunk)
"""`Chunk` of its fields as one tuple: a quarter faster, since no Python function is called."""


@dataclass(slots=True)
class StepPlan:
    """Prefill chunks come first, then decodes and verify chunks."""

    chunks: list[Chunk] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    resumed: list[Request] = field(default_factory=list)
    """Requests that were preempted before and run again."""
    leaves_prompts: bool = False
    """Prompts would have taken more tokens than the step had for them."""
    started: list[Request] = field(default_factory=list)
    """Requests of which this step computes the first chunk, or that wait for another one's chunk of it, whose
    prefix they share."""
    num_drafted: int = 0
    """Drafted tokens of all verify chunks."""
    fillings: list[Filling] = field(default_factory=list)
    """Slots that get another adapter before this step, in order."""
    _sampling: list[Chunk] | None = None

    @property
    def num_tokens(self) -> int:
        """O(prefill chunks): all others are single tokens and drafts."""
        return self.prompt_tokens + len(self.chunks) - self.num_prompts + self.num_drafted

    @property
    def prompts(self) -> list[Chunk]:
        """Prefill chunks. O(their number)."""
        return self.chunks[: self.num_prompts]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of prefill chunks."""
        return sum(chunk.length for chunk in self.prompts)

    def rows(self) -> list[Chunk]:
        """The chunks as the device computes them, with the rows of each verify chunk.

        Those share the request's slot and pages. Row j attends to the rows before it through the pool, so
        that decodes and drafts run through the same kernels.
        """
        if not self.num_drafted:
            return self.chunks
        return [row for chunk in self.chunks for row in chunk.rows()]

    def sampling(self) -> list[Chunk]:
        """Select the chunks of `rows` that sample a token. Made once, of a complete plan: they may be
        hundreds.
        """
        if self._sampling is None:
            self._sampling = [row for row in self.rows() if row.output_index is not None]
        return self._sampling

    @property
    def has_images(self) -> bool:
        """Whether it computes rows of images. O(prefill chunks)."""
        of_images = [c.start < c.request.media[-1].end for c in self.prompts if c.request.media]
        return any(of_images)

    @property
    def num_prompts(self) -> int:
        """How many. O(their number)."""
        count = 0
        for chunk in self.chunks:
            if chunk.kind is not ChunkKind.PREFILL:
                break
            count += 1
        return count

    @property
    def num_single(self) -> int:
        """Requests that start with their last token: the cache held all others of their prompt. O(chunks)
        if any start."""
        if not self.started:
            return 0
        single = {chunk.request.id for chunk in self.chunks if chunk.kind is ChunkKind.DECODE}
        return sum(request.id in single for request in self.started)

    def __bool__(self) -> bool:
        return bool(self.chunks)
