"""Computes vectors: each input is a request of its own, and the answer is all of them or an error."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine.model_config.pooling_spec import PoolingSpec
from router.api.generation.completion import OutputChunk
from router.api.generation.generation import Generation
from router.api.generation.generation_request import Chat, GenerationRequest
from router.api.generation.params.sampling_options import SamplingOptions
from router.api.generation.text.tokenizer import Truncation
from router.errors import Internal, InvalidRequest
from rpc.baton.v1 import worker_pb2

Vectors: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TextPair:
    """Two texts, which a cross-encoder sees together."""

    first: str
    second: str


Input: TypeAlias = str | TextPair | list[int] | Chat
"""Text, a pair of texts, token ids, or a conversation."""


@dataclass(frozen=True, slots=True)
class PooledInputs:
    vectors: Vectors
    """[inputs, d], neither normalized nor cut."""
    tokens: int
    """Tokens of all inputs."""
    cached_tokens: int


def pooling_of(model: Generation) -> PoolingSpec:
    """Raises InvalidRequest for a model that generates text."""
    pooling = model.model.pooling
    if pooling is None:
        raise InvalidRequest(
            f"The model {model.model.name!r} generates text; its server must be started with --convert embed"
            " to compute embeddings.",
            param="model",
            code="wrong_model",
        )
    return pooling


async def pool(
    model: Generation,
    request_id: str,
    inputs: Sequence[Input],
    work: worker_pb2.Work,
    cut: Truncation | None = None,
) -> PooledInputs:
    """The vectors of `inputs`, of which longer ones are `cut`; None: they are refused. Raises RouterError."""
    pooling = pooling_of(model)
    if not inputs:
        raise InvalidRequest("There is no input.", param="input")
    prompts = await _token_ids(model, inputs, cut)
    own = worker_pb2.Work()
    own.CopyFrom(work)
    own.read.pooling = pooling.pooling.value
    request = GenerationRequest(id=request_id, prompts=prompts, options=SamplingOptions(), work=own)
    run = await model.start(request)
    chunks: dict[int, OutputChunk] = {}
    await run.serve(lambda chunk: chunks.__setitem__(chunk.index, chunk))
    vectors = np.stack([_vector(chunks[index]) for index in range(len(prompts))])
    return PooledInputs(vectors, run.usage.prompt_tokens, run.usage.cached_tokens)


def normalized(vectors: Vectors) -> Vectors:
    """Each of length 1, in float32."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    result: Vectors = vectors / np.maximum(lengths, 1e-12)
    return result


def embeddings(
    vectors: Vectors, pooling: PoolingSpec, dimensions: int | None, normalize: bool | None
) -> Vectors:
    """Embeddings of `dimensions` (Matryoshka), normalized after the cut if the model's are, or as asked.

    Raises InvalidRequest for a classifier, and for more dimensions than there are.
    """
    if pooling.classifies:
        raise InvalidRequest("This model computes scores of labels, and no embeddings.", param="model")
    if dimensions is not None:
        if not 1 <= dimensions <= vectors.shape[1]:
            raise InvalidRequest(
                f"dimensions must be from 1 to {vectors.shape[1]}, not {dimensions}.", param="dimensions"
            )
        vectors = vectors[:, :dimensions]
    return normalized(vectors) if (pooling.normalize if normalize is None else normalize) else vectors


def scores(vectors: Vectors, pooling: PoolingSpec, raw: bool | None) -> Vectors:
    """Scores of labels as probabilities, or as they are: `raw`, by default as the model's folder says."""
    if pooling.raw_scores if raw is None else raw:
        return vectors
    if vectors.shape[1] == 1:
        return sigmoid(vectors)
    shifted = np.exp(vectors - vectors.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True), np.float32)


def sigmoid(x: Vectors) -> Vectors:
    return np.asarray(1.0 / (1.0 + np.exp(-x.astype(np.float64))), np.float32)


async def _token_ids(
    model: Generation, inputs: Sequence[Input], cut: Truncation | None
) -> list[Sequence[int]]:
    """Raises InvalidRequest."""
    texts = {
        index: item if isinstance(item, str) else (item.first, item.second)
        for index, item in enumerate(inputs)
        if isinstance(item, str | TextPair)
    }
    if cut is None:
        for text in texts.values():
            model.check_text(text if isinstance(text, str) else "".join(text), "input")
    given = list(texts.values())
    encoded = await asyncio.to_thread(model.tokenizer.encode_inputs, given, cut) if given else []
    known = dict(zip(texts, encoded, strict=True))
    return [known[i] if i in known else await _other(model, inputs[i], cut) for i in range(len(inputs))]


async def _other(model: Generation, item: Input, cut: Truncation | None) -> Sequence[int]:
    if isinstance(item, Chat):
        return (await model.prepare(item)).token_ids
    assert isinstance(item, list)
    if cut is None or len(item) <= cut.tokens:
        return item
    return item[-cut.tokens :] if cut.left else item[: cut.tokens]


def _vector(chunk: OutputChunk) -> Vectors:
    for output in chunk.outputs:
        if output.HasField("pooled"):
            return np.frombuffer(output.pooled.values, "<f4")
    raise Internal("A prompt ended without its vector.")
