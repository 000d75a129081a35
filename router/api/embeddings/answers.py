"""Answers of requests for vectors."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import orjson

from engine.model_config.pooling_spec import PoolingSpec
from router.api.embeddings.bodies import (
    ClassifyBody,
    CohereEmbedBody,
    EmbeddingBody,
    PairScoreBody,
    PooledFields,
    RerankBody,
    TeiEmbedBody,
    TeiPredictBody,
)
from router.api.embeddings.pairs import PairOptions, pair_scores, tokens_around
from router.api.embeddings.pooled import (
    Input,
    PooledInputs,
    TextPair,
    Vectors,
    embeddings,
    pool,
    pooling_of,
    scores,
)
from router.api.embeddings.schemas import TeiInfo
from router.api.generation.generation import Generation
from router.api.generation.off_loop import off_loop
from router.api.generation.text.tokenizer import Truncation
from router.errors import InvalidRequest

_NUMBER_BYTES: Final = 16
"""Bytes of a number in JSON, roughly."""
_PROMPTS_OF_TYPES: Final = {
    "search_query": ("search_query", "query", "Retrieval-query"),
    "search_document": ("search_document", "document", "passage", "Retrieval-document"),
    "classification": ("classification", "Classification"),
    "clustering": ("clustering", "Clustering"),
}
"""Names that models give to the prompts of Cohere's input types."""
_Asked: TypeAlias = tuple[Any, str]


async def embedding_list(model: Generation, asked: tuple[EmbeddingBody, str]) -> bytes:
    body, request_id = asked
    pooling = pooling_of(model)
    inputs = _with_prompt(body.inputs, pooling, body.prompt_name)
    found = await pool(model, request_id, inputs, body.work, _cut(model, body))
    vectors = embeddings(found.vectors, pooling, body.dimensions, body.normalize)
    return await _listed(model, request_id, found, vectors, "embedding", "embedding", body.encoding_format)


async def pooling_list(model: Generation, asked: tuple[ClassifyBody, str]) -> bytes:
    """Embeddings or scores of labels, whatever the model computes."""
    body, request_id = asked
    pooling = pooling_of(model)
    found = await pool(model, request_id, body.inputs, body.work, _cut(model, body))
    if pooling.classifies:
        vectors = scores(found.vectors, pooling, _raw(body.use_activation))
    else:
        vectors = embeddings(found.vectors, pooling, None, body.use_activation)
    return await _listed(model, request_id, found, vectors, "pooling", "data", body.encoding_format)


async def classes(model: Generation, asked: tuple[ClassifyBody, str]) -> bytes:
    body, request_id = asked
    pooling = _classifier(model)
    found = await pool(model, request_id, body.inputs, body.work, _cut(model, body))
    rows = scores(found.vectors, pooling, _raw(body.use_activation))
    data = [
        {
            "index": index,
            "label": pooling.labels[int(row.argmax())],
            "probs": row.tolist(),
            "num_classes": len(row),
        }
        for index, row in enumerate(rows)
    ]
    return orjson.dumps(_list(model, request_id, found, data))


async def score_list(model: Generation, asked: tuple[PairScoreBody, str]) -> bytes:
    body, request_id = asked
    options = PairOptions(cut=_cut(model, body), raw=_raw(body.use_activation), instruction=body.instruction)
    found, pooled = await pair_scores(model, request_id, body.pairs, body.work, options)
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(found)]
    return orjson.dumps(_list(model, request_id, pooled, data))


async def ranking(model: Generation, asked: tuple[RerankBody, str]) -> bytes:
    """In TEI's shape for its `texts`; else one that Jina's, vLLM's and Cohere's clients read."""
    body, request_id = asked
    texts = body.documents_as_texts
    cut = _cut(model, body)
    if body.truncate:
        cut = _whole(model, body.truncation_direction == "Left")
    if body.max_tokens_per_doc is not None:
        around = tokens_around(model, body.query, body.instruction)
        cut = Truncation(min(around + body.max_tokens_per_doc, model.model.longest_prompt))
    pairs = [TextPair(body.query, text) for text in texts]
    options = PairOptions(cut=cut, raw=body.raw_scores, instruction=body.instruction)
    found, pooled = await pair_scores(model, request_id, pairs, body.work, options)
    order = sorted(range(len(texts)), key=lambda index: -found[index])[: body.top_n]
    if body.texts is not None:
        with_text = {index: {"text": texts[index]} if body.return_text else {} for index in order}
        return orjson.dumps([{"index": i, "score": found[i], **with_text[i]} for i in order])
    with_document = {i: {"document": {"text": texts[i]}} if body.return_documents else {} for i in order}
    return orjson.dumps(
        {
            "id": request_id,
            "model": model.model.name,
            "results": [{"index": i, "relevance_score": found[i], **with_document[i]} for i in order],
            "usage": _usage(pooled),
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
        }
    )


async def cohere_embeddings(model: Generation, asked: tuple[CohereEmbedBody, str]) -> bytes:
    body, request_id = asked
    pooling = pooling_of(model)
    cut = None
    if body.truncate != "NONE":
        most = min(body.max_tokens or model.model.max_model_len, model.model.max_model_len)
        cut = Truncation(most, left=body.truncate == "START")
    names = _PROMPTS_OF_TYPES.get(body.input_type or "", (body.input_type or "",))
    name = next((name for name in names if name in pooling.prompts), None)
    inputs = _with_prompt(body.all_texts, pooling, name)
    found = await pool(model, request_id, inputs, body.work, cut)
    vectors = embeddings(found.vectors, pooling, body.output_dimension, None)
    kinds = dict.fromkeys(body.embedding_types or ("float",))
    answer = {
        "id": request_id,
        "response_type": "embeddings_by_type",
        "texts": body.all_texts,
        "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": found.tokens}},
    }
    return await off_loop(
        vectors.size * _NUMBER_BYTES,
        lambda: orjson.dumps({**answer, "embeddings": {kind: _FORMS[kind](vectors) for kind in kinds}}),
    )


async def tei_embeddings(model: Generation, asked: tuple[TeiEmbedBody, str]) -> bytes:
    body, request_id = asked
    pooling = pooling_of(model)
    inputs = _with_prompt(body.texts, pooling, body.prompt_name)
    cut = _whole(model, body.truncation_direction == "Left") if body.truncate else None
    found = await pool(model, request_id, inputs, body.work, cut)
    vectors = embeddings(found.vectors, pooling, body.dimensions, body.normalize)
    return await off_loop(vectors.size * _NUMBER_BYTES, lambda: orjson.dumps(vectors.tolist()))


async def tei_predictions(model: Generation, asked: tuple[TeiPredictBody, str]) -> bytes:
    body, request_id = asked
    pooling = _classifier(model)
    cut = _whole(model, body.truncation_direction == "Left") if body.truncate else None
    found = await pool(model, request_id, body.texts, body.work, cut)
    rows = [_by_label(row, pooling) for row in scores(found.vectors, pooling, body.raw_scores)]
    return orjson.dumps(rows[0] if isinstance(body.inputs, str) else rows)


def tei_info(model: Generation) -> TeiInfo:
    """What TEI's clients ask before they send texts."""
    pooling = pooling_of(model)
    labels = {str(index): label for index, label in enumerate(pooling.labels)}
    kind: dict[str, Any] = {"embedding": {"pooling": pooling.pooling.value}}
    if pooling.classifies:
        name = "reranker" if len(labels) == 1 else "classifier"
        kind = {name: {"id2label": labels, "label2id": {label: int(i) for i, label in labels.items()}}}
    return {
        "model_id": model.model.name,
        "model_type": kind,
        "max_input_length": model.model.max_model_len,
        "max_client_batch_size": 2048,
        "auto_truncate": False,
    }


def _by_label(row: Vectors, pooling: PoolingSpec) -> list[dict[str, Any]]:
    order = np.argsort(-row)
    return [{"label": pooling.labels[at], "score": float(row[at])} for at in order.tolist()]


def _classifier(model: Generation) -> PoolingSpec:
    pooling = pooling_of(model)
    if not pooling.classifies:
        raise InvalidRequest("This model computes embeddings, and no scores of labels.", param="model")
    return pooling


def _with_prompt(inputs: Sequence[Input], pooling: PoolingSpec, name: str | None) -> list[Input]:
    """Texts after the prompt of this name, or the default one. Raises InvalidRequest for another name."""
    name = pooling.default_prompt if name is None else name
    if name and name not in pooling.prompts:
        raise InvalidRequest(
            f"The model has no prompt {name[:100]!r}; it has {', '.join(pooling.prompts) or 'none'}.",
            param="prompt_name",
        )
    before = pooling.prompts.get(name, "")
    return [before + item if isinstance(item, str) else item for item in inputs]


def _raw(use_activation: bool | None) -> bool | None:
    return None if use_activation is None else not use_activation


def _whole(model: Generation, left: bool = False) -> Truncation:
    return Truncation(model.model.longest_prompt, left)


def _cut(model: Generation, body: PooledFields) -> Truncation | None:
    if body.truncate_prompt_tokens is None:
        return None
    most, left = model.model.longest_prompt, body.truncation_side == "left"
    tokens = body.truncate_prompt_tokens
    if tokens == 0 or tokens > most:
        raise InvalidRequest(
            f"truncate_prompt_tokens must be -1, or from 1 to {most}.", param="truncate_prompt_tokens"
        )
    return Truncation(most if tokens == -1 else tokens, left)


def _usage(pooled: PooledInputs) -> dict[str, Any]:
    return {
        "prompt_tokens": pooled.tokens,
        "total_tokens": pooled.tokens,
        "prompt_tokens_details": {"cached_tokens": pooled.cached_tokens},
    }


def _list(
    model: Generation, request_id: str, pooled: PooledInputs, data: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "id": request_id,
        "object": "list",
        "created": int(time.time()),
        "model": model.model.name,
        "data": data,
        "usage": _usage(pooled),
    }


async def _listed(
    model: Generation,
    request_id: str,
    pooled: PooledInputs,
    vectors: Vectors,
    kind: str,
    field: str,
    encoding: str | None,
) -> bytes:
    form = _FORMS["base64" if encoding == "base64" else "float"]

    def render() -> bytes:
        rows = form(vectors)
        data = [{"object": kind, "index": index, field: row} for index, row in enumerate(rows)]
        return orjson.dumps(_list(model, request_id, pooled, data))

    return await off_loop(vectors.size * _NUMBER_BYTES, render)


def _base64(vectors: Vectors) -> list[Any]:
    return [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]


def _ubinary(vectors: Vectors) -> list[Any]:
    bits: list[Any] = np.packbits(vectors > 0, axis=1).tolist()
    return bits


def _binary(vectors: Vectors) -> list[Any]:
    bits: list[Any] = (np.packbits(vectors > 0, axis=1).astype(np.int16) - 128).tolist()
    return bits


_FORMS: Final[Mapping[str, Callable[[Vectors], list[Any]]]] = {
    "float": lambda vectors: vectors.tolist(),
    "base64": _base64,
    "ubinary": _ubinary,
    "binary": _binary,
}
