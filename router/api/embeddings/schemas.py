"""Types of answers, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict


class CachedPromptTokens(TypedDict):
    cached_tokens: int


class PooledUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedPromptTokens


class _List(TypedDict):
    id: str
    object: Literal["list"]
    created: int
    model: str
    usage: PooledUsage


class EmbeddingItem(TypedDict):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(_List):
    data: list[EmbeddingItem]


class VectorItem(TypedDict):
    object: Literal["pooling"]
    index: int
    data: list[float] | str


class VectorList(_List):
    data: list[VectorItem]


class ClassItem(TypedDict):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassList(_List):
    data: list[ClassItem]


class PairScore(TypedDict):
    index: int
    object: Literal["score"]
    score: float


class PairScoreList(_List):
    data: list[PairScore]


class RankedText(TypedDict):
    text: str


class RankedDocument(TypedDict):
    index: int
    relevance_score: float
    document: NotRequired[RankedText]


class CohereMeta(TypedDict):
    api_version: dict[str, str]
    billed_units: dict[str, int]


class Ranking(TypedDict):
    id: str
    model: str
    results: list[RankedDocument]
    usage: PooledUsage
    meta: CohereMeta


class TeiRank(TypedDict):
    index: int
    score: float
    text: NotRequired[str]


class CohereEmbeddings(TypedDict):
    id: str
    response_type: Literal["embeddings_by_type"]
    texts: list[str]
    embeddings: dict[str, list[list[float]] | list[str]]
    meta: CohereMeta


class TeiPrediction(TypedDict):
    label: str
    score: float


TeiPredictions: TypeAlias = list[TeiPrediction] | list[list[TeiPrediction]]


class TeiInfo(TypedDict):
    model_id: str
    model_type: dict[str, Any]
    max_input_length: int
    max_client_batch_size: int
    auto_truncate: bool
