"""Choosing the next tokens of a batch, each row as its request asks.

Work is done for the rows that need it: a greedy batch costs an argmax, and only requests that truncate their
distribution pay for an order of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch

from engine.core.plan import Chunk
from engine.core.sampling_params import Sampling
from engine.device.staging import upload
from engine.sampling.draw import all_finite, draw, draw_truncated, likeliest
from engine.sampling.logprobs import LogprobTensors, measure
from engine.sampling.noise import keys
from engine.sampling.penalties import Penalties

__all__ = ["Sampled", "Sampler"]

Rows: TypeAlias = list[int]


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was chosen for S rows; still on the device."""

    tokens: torch.Tensor
    """[S] int64."""
    finite: torch.Tensor
    """[S] bool: False where the logits were not finite, so that the token means nothing."""
    logprobs: LogprobTensors | None
    """Of the rows whose requests asked for them, in order."""

    def tensors(self) -> list[torch.Tensor]:
        """All of them: tokens, finite, and those of the log-probabilities if there are any."""
        logprobs = self.logprobs
        if logprobs is None:
            return [self.tokens, self.finite]
        return [self.tokens, self.finite, logprobs.chosen, logprobs.rank, logprobs.top, logprobs.top_ids]


@dataclass(slots=True)
class _Wishes:
    """Which rows ask for what."""

    drawn: Rows = field(default_factory=list)
    """From the whole distribution."""
    truncated: Rows = field(default_factory=list)
    """From the likeliest tokens."""
    penalised: Rows = field(default_factory=list)
    measured: Rows = field(default_factory=list)
    """Report log-probabilities."""
    too_early: Rows = field(default_factory=list)
    """May not end yet."""

    @property
    def only_likeliest(self) -> bool:
        """Whether every row just wants its likeliest token."""
        return not (self.drawn or self.truncated or self.penalised or self.measured or self.too_early)

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> _Wishes:
        wishes = cls()
        for row, chunk in enumerate(chunks):
            sampling = chunk.request.sampling
            if not sampling.is_greedy:
                (wishes.truncated if sampling.truncates else wishes.drawn).append(row)
            if sampling.has_penalties:
                wishes.penalised.append(row)
            if sampling.logprobs is not None:
                wishes.measured.append(row)
            if sampling.min_tokens and _output_index(chunk) < sampling.min_tokens:
                wishes.too_early.append(row)
        return wishes


class Sampler:
    def __init__(
        self, *, vocab_size: int, eos_token_ids: Sequence[int], max_requests: int, device: torch.device
    ) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._device = device
        self._penalties = Penalties(vocab_size, max_requests, device)

    def sample(self, logits: torch.Tensor, chunks: Sequence[Chunk]) -> Sampled:
        """Choose one token for each row of `logits` [S, vocab], any float dtype, which belong to `chunks`.

        Log-probabilities are of the model's own distribution; penalties, min_tokens, temperature and
        truncation then apply in this order. `logits` is consumed.
        """
        wishes = _Wishes.of(chunks)
        if wishes.only_likeliest:
            return Sampled(*likeliest(logits), None)
        logits = logits.float()
        finite = all_finite(logits)
        measured = self._rows(wishes.measured)
        log_probs = logits[measured].log_softmax(dim=-1) if wishes.measured else None
        penalised = [chunks[row] for row in wishes.penalised]
        penalised_rows = self._rows(wishes.penalised)
        if penalised:
            logits[penalised_rows] = self._penalties.apply(logits[penalised_rows], penalised)
        if wishes.too_early:
            self._forbid_end(logits, chunks, wishes.too_early)
        tokens = self._choose(logits, chunks, wishes)
        if penalised:
            self._penalties.record(penalised, tokens[penalised_rows])
        if log_probs is None:
            return Sampled(tokens, finite, None)
        num_top = max(chunks[row].request.sampling.logprobs or 0 for row in wishes.measured)
        return Sampled(tokens, finite, measure(log_probs, tokens[measured], num_top))

    def rehearse(self, logits: torch.Tensor) -> None:
        """Do what takes the most memory for rows like `logits`; the result means nothing."""
        ones = torch.ones(len(logits), device=self._device)
        vocab = torch.full((len(logits),), self._vocab_size, device=self._device)
        keys = torch.zeros(len(logits), 2, dtype=torch.int32, device=self._device)
        draw_truncated(logits.float(), ones, keys, top_k=vocab, top_p=ones, min_p=ones)

    def _choose(self, logits: torch.Tensor, chunks: Sequence[Chunk], wishes: _Wishes) -> torch.Tensor:
        tokens = logits.argmax(dim=-1)
        if wishes.drawn:
            rows = self._rows(wishes.drawn)
            samplings = [chunks[row].request.sampling for row in wishes.drawn]
            tokens[rows] = draw(logits[rows], self._temperature(samplings), self._keys(chunks, wishes.drawn))
        if wishes.truncated:
            rows = self._rows(wishes.truncated)
            samplings = [chunks[row].request.sampling for row in wishes.truncated]
            tokens[rows] = draw_truncated(
                logits[rows],
                self._temperature(samplings),
                self._keys(chunks, wishes.truncated),
                top_k=self._top_k(samplings),
                top_p=self._floats([s.top_p for s in samplings]),
                min_p=self._floats([s.min_p for s in samplings]),
            )
        return tokens

    def _forbid_end(self, logits: torch.Tensor, chunks: Sequence[Chunk], rows: Rows) -> None:
        """Take end-of-sequence and stop tokens out of the choice."""
        where: list[tuple[int, int]] = []
        for row in rows:
            sampling = chunks[row].request.sampling
            ends = (
                sampling.stop_token_ids
                if sampling.ignore_eos
                else sampling.stop_token_ids + self._eos_token_ids
            )
            where += ((row, token) for token in ends if token < self._vocab_size)
        if where:
            index = upload(np.array(where), torch.int64, self._device)
            # A number on the right would be copied from the host, which waits for it.
            logits.index_put_((index[:, 0], index[:, 1]), logits.new_full((), -torch.inf))

    def _keys(self, chunks: Sequence[Chunk], rows: Rows) -> torch.Tensor:
        """A request's randomness at the absolute position of the token that is drawn, wherever it runs."""
        seeds = [chunks[row].request.sampling.seed for row in rows]
        positions = [len(chunks[row].request.prompt) + _output_index(chunks[row]) for row in rows]
        return upload(keys(seeds, positions), torch.int32, self._device)

    def _temperature(self, samplings: Sequence[Sampling]) -> torch.Tensor:
        return self._floats([s.temperature for s in samplings])

    def _top_k(self, samplings: Sequence[Sampling]) -> torch.Tensor:
        limits = [min(s.top_k, self._vocab_size) or self._vocab_size for s in samplings]
        return upload(limits, torch.int64, self._device)

    def _rows(self, rows: Rows) -> torch.Tensor:
        # Indexing with a list would make the host wait for the device.
        return upload(rows, torch.int64, self._device)

    def _floats(self, values: list[float]) -> torch.Tensor:
        return upload(values, torch.float32, self._device)


def _output_index(chunk: Chunk) -> int:
    assert chunk.output_index is not None, "only chunks that sample reach the sampler"
    return chunk.output_index
