"""Marks of special tokens by slot and token, in the layout of the sampling kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from engine.core.batch.step_inputs import Ints
from engine.core.plan import Chunk, ChunkKind
from engine.core.sampling_params import SamplingParams
from engine.device.staging import upload
from engine.kernels.sampling.count import count
from engine.kernels.sampling.tiles import BIAS_SHIFT, COUNT_SHIFT, MARK_END, MARK_PROMPT, MAX_BIASES
from engine.sampling.token_masks import TokenMasks

_MOST_COUNTED: Final = (1 << (31 - COUNT_SHIFT.value)) - 1


class TokenMarks:
    """Marks of every slot's request: prompt tokens, forbidden ends, biases, and counts of output tokens.

    A slot is written when it gets a new request, or when its request produced tokens on another worker. After
    that the kernels count on the device, where a token is known one step earlier than on the host; but tokens
    of verify chunks when it is known which are right. Slots after those of requests are copies for a step.
    Memory: 4 bytes * vocabulary * slots.
    """

    def __init__(
        self, vocab_size: int, eos_token_ids: Sequence[int], num_slots: int, device: torch.device
    ) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._device = device
        self.marks = torch.zeros(num_slots, vocab_size, dtype=torch.int32, device=device)
        self.bitmap = torch.zeros(num_slots, 2, -(-vocab_size // 32), dtype=torch.int32, device=device)
        """Bit token % 32 of word token // 32. [slot, 0]: which tokens have a mark; [slot, 1]: which the
        grammar of the slot's request allows next."""
        self.biases = torch.zeros(num_slots, MAX_BIASES.value, dtype=torch.float32, device=device)
        """From index 1 on; marks refer to them."""
        self._written: list[tuple[int, int] | None] = [None] * num_slots
        """For each slot, its request and the number of counted output tokens; 0 without penalties."""
        self._said: list[tuple[int, int]] = []
        """Slots and tokens that are not counted yet."""

    def update(self, chunk: Chunk, counts: bool) -> None:
        """Write the slot's marks unless they are up to date. `counts`: the request has penalties.

        The kernels then count the token that is about to be sampled, but for verify chunks. `count` follows.
        """
        assert chunk.output_index is not None, "only chunks that sample reach the sampler"
        request, slot = chunk.request, chunk.slot
        num_output = chunk.output_index if counts else 0
        written = self._written[slot]
        if written != (request.id, num_output):
            if written is not None and written[0] == request.id and written[1] < num_output:
                self._said += [(slot, token) for token in request.output[written[1] : num_output]]
            else:
                self._write(chunk, counts)
        later = chunk.kind is ChunkKind.VERIFY
        self._written[slot] = (request.id, num_output + (counts and not later))

    def copy(self, copies: Sequence[tuple[int, Chunk]]) -> None:
        """Let each slot be that of its chunk with the chunk's draft counted. `count` follows."""
        sources = upload([chunk.slot for _, chunk in copies], torch.int64, self._device)
        slots = upload([slot for slot, _ in copies], torch.int64, self._device)
        self.count()  # what the copies have too
        for table in (self.marks, self.bitmap[:, 0], self.biases):
            table.index_copy_(0, slots, table.index_select(0, sources))
        self._said += [
            (slot, token)
            for slot, chunk in copies
            if chunk.request.sampling.has_penalties
            for token in chunk.draft
        ]

    def count(self) -> None:
        """Count what was said since the last call."""
        if self._said:
            said = upload(np.array(self._said, dtype=np.int64), torch.int64, self._device)
            count[(len(self._said),)](said, self.marks, self.bitmap, self._vocab_size)
            self._said = []

    def allow(self, slots: Ints, masks: TokenMasks) -> None:
        """Set the tokens that the grammars of `slots` allow next, one mask per slot.

        Uploads vocabulary / 8 bytes per slot.
        """
        places = upload(slots, torch.int64, self._device)
        self.bitmap[:, 1].index_copy_(0, places, upload(masks.words, torch.int32, self._device))

    def forget(self, slot: int) -> None:
        self._written[slot] = None

    def _write(self, chunk: Chunk, counts: bool) -> None:
        request, slot = chunk.request, chunk.slot
        row = np.zeros(self._vocab_size, dtype=np.int32)
        if counts:
            output = np.array(request.output[: chunk.output_index], dtype=np.int64)
            row += np.minimum(np.bincount(output, minlength=len(row)), _MOST_COUNTED) << COUNT_SHIFT.value
            row[np.array(request.prompt, dtype=np.int64)] |= MARK_PROMPT.value
        row[self._ends(request.sampling)] |= MARK_END.value
        biases = np.zeros(len(request.sampling.logit_bias) + 1, dtype=np.float32)
        for index, (token, bias) in enumerate(request.sampling.logit_bias, 1):
            biases[index] = bias
            row[token] |= index << BIAS_SHIFT.value
        tokens = np.flatnonzero(row)
        words = np.zeros(self.bitmap.shape[2] * 32, dtype=np.bool_)
        words[tokens] = True
        packed = np.packbits(words, bitorder="little").view(np.int32)
        self.marks[slot].zero_()
        if len(tokens):
            self.marks[slot][upload(tokens, torch.int64, self._device)] = upload(
                row[tokens], torch.int32, self._device
            )
        self.bitmap[slot, 0].copy_(upload(packed, torch.int32, self._device))
        self.biases[slot, : len(biases)].copy_(upload(biases, torch.float32, self._device))

    def _ends(self, sampling: SamplingParams) -> list[int]:
        if not sampling.min_tokens:
            return []
        ends = sampling.stop_token_ids + (() if sampling.ignore_eos else self._eos_token_ids)
        return [token for token in ends if token < self._vocab_size]
