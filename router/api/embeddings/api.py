"""Routes of models that compute vectors: OpenAI's, vLLM's, Jina's, Cohere's and TEI's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from router.api.decisions.answers import ScoresObject
from router.api.embeddings import answers, bodies, forms, schemas
from router.api.endpoints.kinds import computes, reads
from router.api.endpoints.record import Api, ApiEndpoint, Backend
from router.api.generation.generation import Generation
from router.api.openai.answers.schemas import Error
from router.api.openai.errors import error_body

_BodyT = TypeVar("_BodyT", bound=BaseModel)


def _pools(
    path: str,
    body: type[_BodyT],
    compute: Callable[[Generation, tuple[_BodyT, str]], Awaitable[bytes]],
    answer: object,
    summary: str,
    id_prefix: str = "pool",
) -> ApiEndpoint:
    return computes(path, body, lambda asked, name: (asked, name), compute, answer, summary, id_prefix)


def _info(backend: Backend, request: Request) -> schemas.TeiInfo:
    pools = [model for model in backend.models if model.model.pooling is not None]
    return answers.tei_info((pools or [backend.models.first])[0])


_RANKS: Final = ("/rerank", "/v1/rerank", "/v2/rerank")

EMBEDDINGS: Final[Api] = Api(
    error_body=error_body,
    error=Error,
    endpoints=(
        _pools(
            "/v1/embeddings",
            bodies.EmbeddingBody,
            answers.embedding_list,
            schemas.EmbeddingList,
            "Embeddings of texts.",
            "embd",
        ),
        _pools(
            "/v2/embed",
            bodies.CohereEmbedBody,
            answers.cohere_embeddings,
            schemas.CohereEmbeddings,
            "Embeddings of texts, as Cohere's.",
            "embd",
        ),
        _pools(
            "/embed",
            bodies.TeiEmbedBody,
            answers.tei_embeddings,
            list[list[float]],
            "Embeddings of texts, as TEI's.",
            "embd",
        ),
        *(
            _pools(
                path,
                bodies.RerankBody,
                answers.ranking,
                schemas.Ranking | list[schemas.TeiRank],
                "Documents in the order of their relevance to a query.",
                "rerank",
            )
            for path in _RANKS
        ),
        _pools(
            "/score",
            bodies.PairScoreBody,
            answers.score_list,
            schemas.PairScoreList,
            "Scores of pairs of texts.",
            "score",
        ),
        _pools(
            "/classify",
            bodies.ClassifyBody,
            answers.classes,
            schemas.ClassList,
            "Scores of a classifier's labels, or rewards.",
            "classify",
        ),
        _pools(
            "/pooling",
            bodies.ClassifyBody,
            answers.pooling_list,
            schemas.VectorList,
            "Embeddings or scores, whatever the model computes.",
        ),
        _pools(
            "/predict",
            bodies.TeiPredictBody,
            answers.tei_predictions,
            schemas.TeiPredictions,
            "Scores of a classifier's labels, as TEI's.",
            "predict",
        ),
        _pools(
            "/",
            forms.TeiBody,
            forms.computed,
            list[list[float]] | list[schemas.TeiRank] | schemas.TeiPredictions,
            "What the model computes: embeddings, classes or a ranking, as TEI's.",
        ),
        _pools(
            "/v1/score",
            forms.EitherScoreBody,
            forms.scored,
            ScoresObject | schemas.PairScoreList,
            "Probabilities of label tokens after a query and each item (SGLang's); scores of pairs (vLLM's).",
            "score",
        ),
        reads("/info", _info, schemas.TeiInfo, "The model that computes vectors, as TEI's.", "400"),
    ),
)
