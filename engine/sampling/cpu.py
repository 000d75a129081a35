"""Sampling on a CPU: each operation runs only for the rows that need it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import torch

from engine.core.plan import Chunk
from engine.sampling.gumbel_sample import (
    all_finite,
    drawn_from,
    greedy_sample,
    gumbel_sample,
    gumbel_sample_truncated,
)
from engine.sampling.logprobs import measure, of_named
from engine.sampling.noise import keys
from engine.sampling.penalties import Penalties
from engine.sampling.sampled import Sampled
from engine.sampling.token_masks import TokenMasks

Rows: TypeAlias = list[int]


@dataclass(slots=True)
class _RowSets:
    """Rows by the operations that their requests ask for."""

    drawn: Rows = field(default_factory=list)
    """Drawn from the whole distribution."""
    truncated: Rows = field(default_factory=list)
    """Drawn from the most likely tokens."""
    biased: Rows = field(default_factory=list)
    penalised: Rows = field(default_factory=list)
    measured: Rows = field(default_factory=list)
    """Report log-probabilities."""
    below_min_tokens: Rows = field(default_factory=list)
    """Below min_tokens: end tokens are forbidden."""

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> _RowSets:
        row_sets = cls()
        for row, chunk in enumerate(chunks):
            sampling = chunk.request.sampling
            if not sampling.is_greedy:
                (row_sets.truncated if sampling.truncates else row_sets.drawn).append(row)
            if sampling.logit_bias:
                row_sets.biased.append(row)
            if sampling.has_penalties:
                row_sets.penalised.append(row)
            if sampling.logprobs is not None:
                row_sets.measured.append(row)
            if sampling.min_tokens and _output_index(chunk) < sampling.min_tokens:
                row_sets.below_min_tokens.append(row)
        return row_sets


class TorchSampling:
    def __init__(
        self, *, vocab_size: int, eos_token_ids: Sequence[int], max_requests: int, processed_logprobs: bool
    ) -> None:
        """`processed_logprobs`: see `EngineConfig`."""
        self._processed_logprobs = processed_logprobs
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._penalties = Penalties(vocab_size, max_requests)

    def sample(
        self, logits: torch.Tensor, chunks: Sequence[Chunk], masks: TokenMasks | None = None
    ) -> Sampled:
        """Choose one token for each row of `logits` [S, vocab], any float dtype; they are consumed."""
        row_sets = _RowSets.of(chunks)
        finite = all_finite(logits)
        logits = logits.float()
        measured = logits[row_sets.measured] if row_sets.measured else None
        self._bias(logits, chunks, row_sets.biased)
        penalised = [chunks[row] for row in row_sets.penalised]
        if penalised:
            logits[row_sets.penalised] = self._penalties.apply(logits[row_sets.penalised], penalised)
        self._forbid_end(logits, chunks, row_sets.below_min_tokens)
        if masks is not None:
            self._mask(logits, masks)
        tokens = self._choose(logits, chunks, row_sets)
        if penalised:
            self._penalties.record(penalised, tokens[row_sets.penalised])
        if measured is None:
            return Sampled(tokens, finite, None)
        if self._processed_logprobs:
            measured = self._processed(logits, chunks, row_sets.measured)
        num_top = max(chunks[row].request.sampling.logprobs or 0 for row in row_sets.measured)
        logprobs = measure(measured, tokens[row_sets.measured], num_top)
        named = of_named(measured, [chunks[row] for row in row_sets.measured])
        return Sampled(tokens, finite, replace(logprobs, named=named))

    def _processed(self, logits: torch.Tensor, chunks: Sequence[Chunk], rows: Rows) -> torch.Tensor:
        """Logits of the distributions that rows are sampled from; of a greedy row, before its argmax."""
        processed = logits[rows]
        places = [place for place, row in enumerate(rows) if chunks[row].request.sampling.temperature > 0.0]
        if places:
            drawn = [rows[place] for place in places]
            processed[places] = drawn_from(
                processed[places], self._temperature(chunks, drawn), **self._limits(chunks, drawn)
            )
        return processed

    def _choose(self, logits: torch.Tensor, chunks: Sequence[Chunk], row_sets: _RowSets) -> torch.Tensor:
        tokens = greedy_sample(logits)[0]
        if row_sets.drawn:
            rows = row_sets.drawn
            tokens[rows] = gumbel_sample(
                logits[rows], self._temperature(chunks, rows), self._keys(chunks, rows)
            )
        if row_sets.truncated:
            rows = row_sets.truncated
            tokens[rows] = gumbel_sample_truncated(
                logits[rows],
                self._temperature(chunks, rows),
                self._keys(chunks, rows),
                **self._limits(chunks, rows),
            )
        return tokens

    def _limits(self, chunks: Sequence[Chunk], rows: Rows) -> dict[str, torch.Tensor]:
        samplings = [chunks[row].request.sampling for row in rows]
        return {
            "top_k": torch.tensor([s.top_k or self._vocab_size for s in samplings]),
            "top_p": torch.tensor([s.top_p for s in samplings]),
            "min_p": torch.tensor([s.min_p for s in samplings]),
        }

    def _bias(self, logits: torch.Tensor, chunks: Sequence[Chunk], rows: Rows) -> None:
        for row in rows:
            tokens, biases = zip(*chunks[row].request.sampling.logit_bias, strict=True)
            logits[row, list(tokens)] += torch.tensor(biases)

    def _forbid_end(self, logits: torch.Tensor, chunks: Sequence[Chunk], rows: Rows) -> None:
        """Exclude end-of-sequence and stop tokens."""
        for row in rows:
            sampling = chunks[row].request.sampling
            ends = sampling.stop_token_ids + (() if sampling.ignore_eos else self._eos_token_ids)
            logits[row, [token for token in ends if token < self._vocab_size]] = -torch.inf

    def _mask(self, logits: torch.Tensor, masks: TokenMasks) -> None:
        """Exclude tokens that the rows' grammars forbid."""
        bits = np.unpackbits(masks.words.view(np.uint8), axis=1, count=self._vocab_size, bitorder="little")
        forbidden = torch.from_numpy(bits == 0)
        for row, mask in zip(masks.rows, forbidden, strict=True):
            logits[row].masked_fill_(mask, -torch.inf)

    def _keys(self, chunks: Sequence[Chunk], rows: Rows) -> torch.Tensor:
        """Keys of noise from seeds and absolute token positions: draws do not depend on the worker."""
        seeds = np.array([chunks[row].request.sampling.seed for row in rows], dtype=np.uint64)
        positions = [len(chunks[row].request.prompt) + _output_index(chunks[row]) for row in rows]
        return torch.from_numpy(keys(seeds, positions))

    def _temperature(self, chunks: Sequence[Chunk], rows: Rows) -> torch.Tensor:
        return torch.tensor([chunks[row].request.sampling.temperature for row in rows])


def _output_index(chunk: Chunk) -> int:
    assert chunk.output_index is not None, "only chunks that sample reach the sampler"
    return chunk.output_index
