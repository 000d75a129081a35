"""Scores of pairs of texts: a cross-encoder's, those of two tokens of a model of text, or cosines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.model_config.pooling_spec import PoolingSpec, TokenScore
from router.api.decisions.reading import read
from router.api.embeddings.pooled import (
    PooledInputs,
    TextPair,
    Vectors,
    normalized,
    pool,
    scores,
    sigmoid,
)
from router.api.generation.generation import Generation
from router.api.generation.text.pair_form import PairForm
from router.api.generation.text.tokenizer import Framed, Truncation
from router.errors import InvalidRequest
from rpc.baton.v1 import worker_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    cut: Truncation | None = None
    """Longer pairs lose an end of the second text; None: they are refused."""
    raw: bool | None = None
    """Scores as they are, and no probabilities; None: as the model's folder says."""
    instruction: str | None = None
    """What relevance means; None: the model's default."""


async def pair_scores(
    model: Generation,
    request_id: str,
    pairs: Sequence[TextPair],
    work: worker_pb2.Work,
    options: PairOptions,
) -> tuple[list[float], PooledInputs]:
    """A score of each pair. Raises RouterError."""
    form, pooling = model.model.pairs, model.model.pooling
    if pooling is None and form.tokens is None:
        raise InvalidRequest(
            f"The model {model.model.name!r} generates text; its server must be started with --convert embed"
            " to compare texts, or, for a reranker, with --hf-overrides that name the tokens of its scores.",
            param="model",
            code="wrong_model",
        )
    if pooling is not None and not pooling.classifies:
        return await _cosines(model, request_id, pairs, work, options)
    check_scores_pairs(pooling)
    if pooling is not None and form.template is None and not options.instruction:
        found = await pool(model, request_id, pairs, work, options.cut)
        return scores(found.vectors, pooling, options.raw)[:, 0].tolist(), found
    framed = framed_pairs(form, pairs, options.instruction)
    if options.cut is None:
        for each in framed:
            model.check_text(each.whole, "input")
    prompts = await asyncio.to_thread(model.tokenizer.encode_framed, framed, options.cut)
    if pooling is not None:
        found = await pool(model, request_id, prompts, work)
        return scores(found.vectors, pooling, options.raw)[:, 0].tolist(), found
    assert form.tokens is not None
    reading = await read(model, request_id, prompts, form.tokens.ids, work)
    odds, usage = log_odds(form.tokens, reading.rows), reading.usage
    found = PooledInputs(odds, usage.prompt_tokens, usage.cached_tokens)
    return token_scores(form.tokens, odds, options.raw), found


def check_scores_pairs(pooling: PoolingSpec | None) -> None:
    """Raise InvalidRequest for a classifier with several labels."""
    if pooling is not None and len(pooling.labels) != 1:
        raise InvalidRequest(
            f"This model has {len(pooling.labels)} labels; pairs need a cross-encoder, which has one.",
            param="model",
        )


def framed_pairs(form: PairForm, pairs: Sequence[TextPair], instruction: str | None) -> list[Framed]:
    """The prompts of pairs; each query is rendered once. Raises InvalidRequest."""
    frames = {query: form.frame(query, instruction) for query in dict.fromkeys(pair.first for pair in pairs)}
    return [replace(frames[pair.first], text=pair.second) for pair in pairs]


def log_odds(tokens: TokenScore, rows: Sequence[Mapping[int, float]]) -> Vectors:
    """Differences of the logits of both tokens, from their log-probabilities."""
    return np.array([row[tokens.true_id] - row[tokens.false_id] for row in rows], np.float32)


def token_scores(tokens: TokenScore, odds: Vectors, raw: bool | None) -> list[float]:
    found: list[float] = (odds if (tokens.raw_scores if raw is None else raw) else sigmoid(odds)).tolist()
    return found


def cosines(pairs: Sequence[TextPair], texts: Sequence[str], vectors: Vectors) -> list[float]:
    """`vectors`: those of `texts`, among which are those of all pairs."""
    place, unit = {text: index for index, text in enumerate(texts)}, normalized(vectors)
    return [float(unit[place[pair.first]] @ unit[place[pair.second]]) for pair in pairs]


def texts_of(pairs: Sequence[TextPair]) -> list[str]:
    """All texts, each once."""
    return list(dict.fromkeys(text for pair in pairs for text in (pair.first, pair.second)))


async def _cosines(
    model: Generation,
    request_id: str,
    pairs: Sequence[TextPair],
    work: worker_pb2.Work,
    options: PairOptions,
) -> tuple[list[float], PooledInputs]:
    if options.instruction:
        raise InvalidRequest("Embeddings of pairs take no instruction.", param="instruction")
    texts = texts_of(pairs)
    found = await pool(model, request_id, texts, work, options.cut)
    return cosines(pairs, texts, found.vectors), found


def tokens_around(model: Generation, query: str, instruction: str | None) -> int:
    """Tokens of a pair with this query, without those of its document."""
    form = model.model.pairs
    if model.model.pooling is not None and form.template is None:
        [ids] = model.tokenizer.encode_inputs([query])
    else:
        [ids] = model.tokenizer.encode_framed([form.frame(query, instruction)])
    return len(ids)
