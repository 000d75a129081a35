"""Routes whose bodies have two forms: TEI's `POST /`, and `/v1/score` of SGLang and of vLLM."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Annotated, Any, Final, TypeAlias

from pydantic import BeforeValidator, Discriminator, RootModel, Tag
from pydantic_core import PydanticCustomError

from router.api.decisions.answers import label_scores
from router.api.decisions.bodies import LabelScoreBody
from router.api.embeddings.answers import ranking, score_list, tei_embeddings, tei_predictions
from router.api.embeddings.bodies import PairScoreBody, RerankBody, TeiEmbedBody, TeiPredictBody
from router.api.embeddings.pooled import pooling_of
from router.api.generation.generation import Generation
from router.errors import InvalidRequest

_SCORES: Final = (
    "query, items and label_token_ids for probabilities of label tokens,"
    " or two sides, such as text_1 and text_2, for scores of pairs"
)
_TEI: Final = "inputs for embeddings or predictions, or query and texts for a ranking"
_OF_LABELS: Final = LabelScoreBody.model_fields.keys() - PairScoreBody.model_fields.keys()
_OF_PAIRS: Final = PairScoreBody.model_fields.keys() - LabelScoreBody.model_fields.keys()
_OF_RANKINGS: Final = frozenset({"query", "texts"})
_ONLY_EMBEDS: Final = TeiEmbedBody.model_fields.keys() - TeiPredictBody.model_fields.keys()
_ONLY_PREDICTS: Final = TeiPredictBody.model_fields.keys() - TeiEmbedBody.model_fields.keys()


def _require_one(first: Set[str], second: Set[str], forms: str) -> Callable[[Any], Any]:
    """A validator that refuses a body with fields of both forms, or of none."""

    def check(body: Any) -> Any:
        if isinstance(body, dict):
            has = bool(body.keys() & first), bool(body.keys() & second)
            if all(has):
                raise PydanticCustomError("forms", "The body mixes two forms; give {forms}", {"forms": forms})
            if not any(has):
                raise PydanticCustomError("forms", "Give {forms}", {"forms": forms})
        return body

    return check


def _has(fields: Set[str]) -> Discriminator:
    return Discriminator(lambda body: "other" if isinstance(body, dict) and body.keys() & fields else "one")


_OneOfScores: TypeAlias = Annotated[
    Annotated[LabelScoreBody, Tag("one")] | Annotated[PairScoreBody, Tag("other")],
    _has(_OF_PAIRS),
    BeforeValidator(_require_one(_OF_LABELS, _OF_PAIRS, _SCORES)),
]


class EitherScoreBody(RootModel[_OneOfScores]):
    """POST /v1/score."""


class TeiInputsBody(TeiEmbedBody, TeiPredictBody):
    """Inputs of a model of either kind."""


_OneOfTei: TypeAlias = Annotated[
    Annotated[TeiInputsBody, Tag("one")] | Annotated[RerankBody, Tag("other")],
    _has(_OF_RANKINGS),
    BeforeValidator(_require_one({"inputs"}, _OF_RANKINGS, _TEI)),
]


class TeiBody(RootModel[_OneOfTei]):
    """POST /."""


async def scored(model: Generation, asked: tuple[EitherScoreBody, str]) -> Any:
    body, request_id = asked[0].root, asked[1]
    if isinstance(body, LabelScoreBody):
        return await label_scores(model, (body, request_id))
    return await score_list(model, (body, request_id))


async def computed(model: Generation, asked: tuple[TeiBody, str]) -> bytes:
    """What the model computes, as TEI answers. Raises InvalidRequest for a form of other models."""
    body, request_id = asked[0].root, asked[1]
    ranks = _is_reranker(model)
    if isinstance(body, RerankBody):
        if not ranks:
            pooling_of(model)
            raise _wrong_form(model, "no reranker, and takes inputs; POST /rerank ranks with any model")
        return await ranking(model, (body, request_id))
    if ranks:
        raise _wrong_form(model, "a reranker, and takes query and texts; POST /predict scores single texts")
    if pooling_of(model).classifies:
        _refuse(body, _ONLY_EMBEDS, "a classifier")
        return await tei_predictions(model, (body, request_id))
    _refuse(body, _ONLY_PREDICTS, "a model of embeddings")
    return await tei_embeddings(model, (body, request_id))


def _is_reranker(model: Generation) -> bool:
    """Whether it has one label, or generates text and has two tokens for scores."""
    pooling = model.model.pooling
    return model.model.pairs.tokens is not None if pooling is None else len(pooling.labels) == 1


def _refuse(body: TeiInputsBody, fields: Set[str], kind: str) -> None:
    for name in sorted(body.model_fields_set & fields):
        raise InvalidRequest(f"{name} has no meaning for {kind}.", param=name, code="unsupported_parameter")


def _wrong_form(model: Generation, kind: str) -> InvalidRequest:
    return InvalidRequest(f"The model {model.model.name!r} is {kind}.", code="wrong_model")
