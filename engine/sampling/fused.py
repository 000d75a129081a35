"""Sampling with GPU kernels: a fixed number of passes over the logits, for any mix of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import triton

from engine.core.batch.step_inputs import Ints
from engine.core.plan import Chunk, ChunkKind
from engine.core.sampling_params import SamplingParams
from engine.device.staging import upload
from engine.kernels.sampling import tiles
from engine.kernels.sampling.cut import gather, judge, narrow, prepare, verify
from engine.kernels.sampling.finish import finish
from engine.kernels.sampling.report import LANE_TOKENS, RIVALS, rank, report, rivals
from engine.kernels.sampling.scan import conclude, redraw, scan
from engine.kernels.sampling.search import JOBS, LIST, PASSES, PIVOTS, STATE, TO_REDRAW
from engine.sampling.gumbel_sample import coldest, min_p_limit
from engine.sampling.logprobs import LogprobTensors, of_named
from engine.sampling.noise import keys
from engine.sampling.sampled import Sampled
from engine.sampling.token_marks import TokenMarks
from engine.sampling.token_masks import TokenMasks

_Launch: TypeAlias = dict[str, Any]

# Sums and products are not contracted to FMAs, so that rounding is the same as on a CPU.
_ONE_WARP: Final[_Launch] = {"num_warps": 1, "enable_fp_fusion": False}
_FOUR_WARPS: Final[_Launch] = {"num_warps": 4, "enable_fp_fusion": False}
_EIGHT_WARPS: Final[_Launch] = {"num_warps": 8, "maxnreg": 64, "enable_fp_fusion": False}
"""With twice the registers, lower occupancy costs more than it gains."""
_SIXTEEN_WARPS: Final[_Launch] = {"num_warps": 16, "enable_fp_fusion": False}
_FLAGS: Final = {
    name: getattr(tiles, name).value
    for name in ("RANDOM", "BELOW_MIN_TOKENS", "EDITED", "MASKED", "MEASURED", "RECORDED", "TRUNCATED")
}


_ROWS_AT_ONCE: Final = 64
"""Thread blocks per split in kernels in which many rows have nothing to do; each takes several rows."""


class FusedSampling:
    """Sampling parameters of every slot on the device, and intermediate results of the kernels.

    A step uploads 16 bytes per row, parameters of slots with a new request, and masks. A slot has one mask
    and one table of counts, so rows after a draft get slots of their own for the step if they need other
    ones: see `_own_slots`.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        max_requests: int,
        max_rows: int | None = None,
        max_edited_drafts: int = 0,
        device: torch.device,
    ) -> None:
        """`max_rows`: sampled at once; several of one request if it has drafts. None: `max_requests`.
        `max_edited_drafts`: most rows after a draft under penalties or a grammar."""
        max_rows = max_rows or max_requests
        self._device = device
        self._vocab_size = vocab_size
        self._max_requests = max_requests
        num_slots = self._num_slots = max_requests + max_edited_drafts
        self._marks = TokenMarks(vocab_size, eos_token_ids, num_slots, device)
        self._floats = self._empty(torch.float32, num_slots, tiles.NUM_FLOATS.value)
        self._ints = self._empty(torch.int32, num_slots, tiles.NUM_INTS.value)
        self._known: list[SamplingParams | None] = [None] * max_requests
        """For each slot, the parameters that are on the device."""
        self._flags = np.zeros(max_requests, dtype=np.int32)
        """For each slot, the flags that do not change between steps."""
        splits = -(-vocab_size // tiles.SPLIT.value)
        self._splits = splits
        self._padded = triton.next_power_of_2(splits)
        self._capacity = max_rows
        lanes = tiles.LANES.value
        self._stats = self._empty(torch.float32, max_rows, splits, tiles.STATS.value)
        self._picks = self._empty(torch.int32, max_rows, splits)
        self._peaks = self._empty(torch.float32, max_rows, splits, lanes)
        self._raw_peaks = self._empty(torch.int64, max_rows, splits, lanes)
        self._highest = self._empty(torch.float32, max_rows)
        self._state = self._empty(torch.int64, PASSES.value, max_rows, STATE.value)
        self._sums = self._empty(torch.int64, PASSES.value, max_rows, splits, PIVOTS.value)
        self._list = (
            self._empty(torch.int32, max_rows),
            self._empty(torch.float32, max_rows, LIST.value),
            self._empty(torch.int32, max_rows, LIST.value),
        )
        """For each row, the number of listed tokens, their edited logits, and their ids."""
        self._cuts = self._empty(torch.int32, max_rows, 2)
        self._jobs = torch.zeros(JOBS.value, max_rows + 1, dtype=torch.int32, device=device)
        self._kept_scores = self._empty(torch.float32, max_rows, splits)
        self._kept_picks = self._empty(torch.int32, max_rows, splits)
        self._floors = self._empty(torch.float32, max_rows, 2)
        self._limits = self._empty(torch.int32, max_rows)
        self._found = self._empty(torch.int32, max_rows)
        self._rivals = self._empty(torch.int64, max_rows, RIVALS.value)
        self._ahead = self._empty(torch.int32, max_rows, splits)

    def sample(
        self, logits: torch.Tensor, chunks: Sequence[Chunk], masks: TokenMasks | None = None
    ) -> Sampled:
        """Choose one token for each row of `logits` [S, vocab], of any float dtype and unit column stride."""
        rows, places, flags = self._rows(chunks, masks)
        tokens = torch.empty(len(chunks), dtype=torch.int64, device=self._device)
        finite = torch.empty(len(chunks), dtype=torch.bool, device=self._device)
        marks = (self._marks.marks, self._marks.bitmap, self._marks.biases)
        vocab, splits, padded = self._vocab_size, self._splits, self._padded
        each, wide = (len(chunks),), (splits, len(chunks))
        scan[wide](
            *(logits, logits.stride(0), rows, self._floats, *marks),
            *(self._stats, self._picks, self._peaks, self._raw_peaks),
            *(vocab, splits),
            **_EIGHT_WARPS,
        )
        if flags & _FLAGS["TRUNCATED"]:
            self._cut(logits, rows, len(chunks))
        conclude[each](
            *(rows, *marks[:2], self._stats, self._picks),
            *(self._cuts, self._kept_scores, self._kept_picks, tokens, finite, self._jobs),
            *(vocab, splits, padded, JOBS.value, self._capacity + 1),
            **_ONE_WARP,
        )
        if not flags & _FLAGS["MEASURED"]:
            return Sampled(tokens, finite, None)
        measured = [chunk for chunk in chunks if chunk.request.sampling.logprobs is not None]
        most = max(chunk.request.sampling.logprobs or 0 for chunk in measured)
        logprobs = self._measured(logits, rows, places, tokens, most)
        if any(chunk.request.sampling.logprob_token_ids for chunk in measured):
            logprobs = replace(logprobs, named=of_named(logits[places], measured))
        return Sampled(tokens, finite, logprobs)

    def _cut(self, logits: torch.Tensor, rows: torch.Tensor, count: int) -> None:
        """Find the cuts of truncated rows, and draw within them."""
        marks = (self._marks.marks, self._marks.bitmap, self._marks.biases)
        shared = (logits, logits.stride(0), rows, self._floats, self._ints, *marks)
        vocab, splits, padded, capacity = self._vocab_size, self._splits, self._padded, self._capacity
        each, some = (count,), (splits, min(count, _ROWS_AT_ONCE))
        prepare[each](
            *(*shared, self._stats, self._picks, self._peaks, self._highest, self._state),
            *(self._list[0], self._cuts, self._jobs),
            *(vocab, splits, padded, capacity),
            **_EIGHT_WARPS,
        )
        search = (*shared, self._highest, self._state, self._sums)
        verify[some](*search, self._jobs, vocab, splits, padded, capacity, **_EIGHT_WARPS)
        judge[each](
            *(rows, self._floats, self._ints, self._state, self._sums, self._cuts, self._jobs),
            *(splits, padded, capacity),
            **_ONE_WARP,
        )
        for number in range(PASSES.value):
            narrow[some](*search, self._jobs, vocab, splits, padded, capacity, number, **_EIGHT_WARPS)
        listed = (*search, *self._list)
        gather[some](*listed, self._jobs, vocab, splits, padded, capacity, **_EIGHT_WARPS)
        finish[each](*listed, self._cuts, self._jobs, vocab, splits, padded, capacity, **_SIXTEEN_WARPS)
        redraw[some](
            *(logits, logits.stride(0), rows, self._floats, *marks),
            *(self._highest, self._cuts, self._kept_scores, self._kept_picks, self._jobs[TO_REDRAW.value]),
            *(vocab, splits),
            **_EIGHT_WARPS,
        )

    def _measured(
        self, logits: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, tokens: torch.Tensor, most: int
    ) -> LogprobTensors:
        number = len(places)
        chosen = self._empty(torch.float32, number)
        ranks = self._empty(torch.int64, number)
        top = self._empty(torch.float32, number, most)
        ids = self._empty(torch.int64, number, most)
        vocab, splits, padded = self._vocab_size, self._splits, self._padded
        rivals[(number,)](
            *(logits, logits.stride(0), rows, self._ints, places, tokens, self._raw_peaks),
            *(self._floors, self._limits, self._found),
            *(splits, padded),
            **_EIGHT_WARPS,
        )
        found = (self._floors, self._found, self._rivals, self._ahead)
        rank[(splits, number)](
            *(logits, logits.stride(0), places, found[0], self._limits, *found[1:]),
            *(vocab, splits),
            **_EIGHT_WARPS,
        )
        report[(number,)](
            *(rows, self._ints, places, self._stats, *found, chosen, ranks, top, ids, most),
            *(vocab, splits, padded),
            **_FOUR_WARPS,
        )
        return LogprobTensors(chosen=chosen, rank=ranks, top=top, top_ids=ids)

    def _rows(
        self, chunks: Sequence[Chunk], masks: TokenMasks | None
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        """The table of rows, [S, 4] int32 (slot, key, flags); rows with log-probabilities; all flags
        together."""
        changed = [chunk for chunk in chunks if self._known[chunk.slot] is not chunk.request.sampling]
        if changed:
            self._adopt(changed)
        slots = np.array([chunk.slot for chunk in chunks], dtype=np.int64)
        flags = self._flags[slots]
        for row in np.flatnonzero(flags & _FLAGS["BELOW_MIN_TOKENS"]).tolist():
            chunk = chunks[row]
            if _output_index(chunk) >= chunk.request.sampling.min_tokens:
                flags[row] &= ~_FLAGS["BELOW_MIN_TOKENS"]
        flags |= np.where(flags & _FLAGS["BELOW_MIN_TOKENS"], _FLAGS["EDITED"], 0).astype(np.int32)
        for row in np.flatnonzero(flags & _FLAGS["EDITED"]).tolist():
            if not chunks[row].draft:
                self._marks.update(chunks[row], bool(flags[row] & _FLAGS["RECORDED"]))
        self._own_slots(chunks, slots, flags)
        self._marks.count()
        if masks is not None:
            self._marks.allow(slots[masks.rows], masks)
        seeds = [chunk.request.sampling.seed for chunk in chunks]
        positions = [len(chunk.request.prompt) + _output_index(chunk) for chunk in chunks]
        measured = np.flatnonzero(flags & _FLAGS["MEASURED"])
        table = np.empty(4 * len(chunks) + len(measured), dtype=np.int32)
        rows = table[: 4 * len(chunks)].reshape(-1, 4)
        rows[:, 0] = slots
        rows[:, 1:3] = keys(seeds, positions)
        rows[:, 3] = flags
        table[4 * len(chunks) :] = measured
        sent = upload(table, torch.int32, self._device)
        return sent[: 4 * len(chunks)], sent[4 * len(chunks) :], int(np.bitwise_or.reduce(flags))

    def _own_slots(self, chunks: Sequence[Chunk], slots: Ints, flags: npt.NDArray[np.int32]) -> None:
        """Change `slots` [S] of rows after drafts under penalties or a grammar, and `flags` [S] of all rows
        of verify chunks, whose tokens are counted later, as far as they are right."""
        verified = [row for row, chunk in enumerate(chunks) if chunk.kind is ChunkKind.VERIFY]
        edited = _FLAGS["RECORDED"] | _FLAGS["MASKED"]
        own = [row for row in verified if chunks[row].draft and flags[row] & edited]
        if own:
            if self._max_requests + len(own) > self._num_slots:
                raise ValueError(f"{len(own)} drafted tokens under penalties or grammars")
            sources = upload(slots[own], torch.int64, self._device)
            slots[own] = np.arange(self._max_requests, self._max_requests + len(own))
            there = upload(slots[own], torch.int64, self._device)
            for table in (self._floats, self._ints):
                table.index_copy_(0, there, table.index_select(0, sources))
            marked = [row for row in own if flags[row] & _FLAGS["EDITED"]]
            if marked:
                self._marks.copy([(int(slots[row]), chunks[row]) for row in marked])
        flags[verified] &= ~_FLAGS["RECORDED"]

    def _adopt(self, chunks: Sequence[Chunk]) -> None:
        """Upload the parameters of slots that have another request."""
        floats = np.zeros((len(chunks), tiles.NUM_FLOATS.value), dtype=np.float32)
        ints = np.zeros((len(chunks), tiles.NUM_INTS.value), dtype=np.int32)
        for i, chunk in enumerate(chunks):
            sampling = chunk.request.sampling
            floats[i, : len(tiles.FLOATS)] = (
                np.float32(1.0) / np.float32(coldest(sampling.temperature)),
                sampling.top_p,
                np.float32(1.0) / np.float32(sampling.repetition_penalty),
                sampling.repetition_penalty,
                sampling.presence_penalty,
                sampling.frequency_penalty,
            )
            ints[i, : len(tiles.INTS)] = (
                sampling.top_k if sampling.top_k < self._vocab_size else 0,
                min_p_limit(sampling.min_p),
                self._num_top(sampling),
            )
            self._flags[chunk.slot] = _flags_of(sampling)
            self._known[chunk.slot] = sampling
            self._marks.forget(chunk.slot)
        slots = upload([chunk.slot for chunk in chunks], torch.int64, self._device)
        self._floats.index_copy_(0, slots, upload(floats, torch.float32, self._device))
        self._ints.index_copy_(0, slots, upload(ints, torch.int32, self._device))

    def _num_top(self, sampling: SamplingParams) -> int:
        num_top = sampling.logprobs or 0
        if num_top * LANE_TOKENS > RIVALS.value:
            raise ValueError(f"{num_top} log-probabilities; at most {RIVALS.value // LANE_TOKENS} can be had")
        return num_top

    def _empty(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self._device)


def _flags_of(sampling: SamplingParams) -> int:
    """Flags of a request's rows; BELOW_MIN_TOKENS if the request has min_tokens at all."""
    flags = 0
    if not sampling.is_greedy:
        flags |= _FLAGS["RANDOM"] | (_FLAGS["TRUNCATED"] if sampling.truncates else 0)
    if sampling.has_penalties:
        flags |= _FLAGS["RECORDED"] | _FLAGS["EDITED"]
    if sampling.logit_bias:
        flags |= _FLAGS["EDITED"]
    if sampling.logprobs is not None:
        flags |= _FLAGS["MEASURED"]
    if sampling.min_tokens:
        flags |= _FLAGS["BELOW_MIN_TOKENS"]
    if sampling.grammar is not None:
        flags |= _FLAGS["MASKED"]
    return flags


def _output_index(chunk: Chunk) -> int:
    assert chunk.output_index is not None, "only chunks that sample reach the sampler"
    return chunk.output_index
