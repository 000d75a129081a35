"""Scores of pairs of texts, on an engine of this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.generation import OfflineRunner
from baton.vectors import vectors
from engine.loop.engine import Engine
from router.api.embeddings.pairs import (
    check_scores_pairs,
    cosines,
    framed_pairs,
    log_odds,
    texts_of,
    token_scores,
)
from router.api.embeddings.pooled import TextPair, scores
from router.api.generation.text.pair_form import PairForm
from router.api.generation.text.tokenizer import Tokenizer
from router.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class OfflinePairs:
    engine: Engine
    runner: OfflineRunner
    tokenizer: Tokenizer
    form: PairForm

    def scores(self, pairs: Sequence[TextPair], instruction: str | None) -> list[float]:
        """Raises ValueError for a model that scores no pairs, and for a pair that does not fit."""
        if not pairs:
            return []
        pooling = self.engine.config.pooling
        if pooling is None and self.form.tokens is None:
            raise ValueError(
                "This model generates text; pass label_token_ids, or hf_overrides of a reranker."
            )
        try:
            check_scores_pairs(None if pooling is None or not pooling.classifies else pooling)
            by_template = pooling is None or self.form.template is not None or bool(instruction)
            framed = framed_pairs(self.form, pairs, instruction) if by_template else []
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        if pooling is None:
            assert self.form.tokens is not None
            rows = self.runner.read(self._fitting(self.tokenizer.encode_framed(framed)), self.form.tokens.ids)
            return token_scores(self.form.tokens, log_odds(self.form.tokens, rows), None)
        if not pooling.classifies:
            texts = texts_of(pairs)
            prompts = self._fitting(self.tokenizer.encode_inputs(texts))
            return cosines(pairs, texts, vectors(self.engine, prompts))
        both = [(pair.first, pair.second) for pair in pairs]
        encode = self.tokenizer.encode_inputs
        prompts = self._fitting(self.tokenizer.encode_framed(framed) if framed else encode(both))
        found: list[float] = scores(vectors(self.engine, prompts), pooling, None)[:, 0].tolist()
        return found

    def _fitting(self, prompts: list[list[int]]) -> list[list[int]]:
        longest = self.engine.max_tokens - (self.engine.config.pooling is None)
        if not all(0 < len(prompt) <= longest for prompt in prompts):
            raise ValueError(f"Texts need 1 to {longest} tokens each.")
        return prompts
