"""Answers of decisions and scores, in the shapes of OpenAI's, TypeSafe's, SGLang's and vLLM's servers."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypeAlias

from router.api.decisions.asking import Asked, decide
from router.api.decisions.bodies import (
    ChoiceBody,
    DecisionBody,
    LabelScoreBody,
    LevelsBody,
    NamedQuestionBody,
    NoulBody,
    PredicateBody,
    QuestionBody,
    SystemOneBody,
)
from router.api.decisions.questions import OptionShares
from router.api.decisions.reading import Reading, read, softmax
from router.api.generation.generation import Generation
from router.api.openai.answers.schemas import Closed
from router.api.openai.answers.timings import Timings
from router.errors import InvalidRequest


class _Answer(Closed):
    name: str | None
    x_label_mass: float
    """Probability of all labels among all tokens: low if the model would have answered otherwise."""


class PredicateAnswer(_Answer):
    type: Literal["predicate"]
    probability: float


class ChoiceProbability(Closed):
    value: str | bool
    probability: float


class ChoiceAnswer(_Answer):
    type: Literal["choice"]
    choice: str | bool
    confidence: float
    """Probability of the choice among all tokens."""
    probabilities: list[ChoiceProbability]


class LevelProbability(Closed):
    value: int
    """From 0."""
    label: str
    probability: float


class ScoreAnswer(_Answer):
    type: Literal["score"]
    score: float
    """Expected level."""
    confidence: float
    probabilities: list[LevelProbability]


DecisionAnswer: TypeAlias = PredicateAnswer | ChoiceAnswer | ScoreAnswer


class ReadInput(Closed):
    cached_tokens: int
    cache_write_tokens: int


class ReadOutput(Closed):
    reasoning_tokens: int


class ReadUsage(Closed):
    input_tokens: int
    """Prompts of all questions."""
    input_tokens_details: ReadInput
    output_tokens: int
    output_tokens_details: ReadOutput
    total_tokens: int


class DecisionObject(Closed):
    id: str
    model: str
    answers: list[DecisionAnswer]
    usage: ReadUsage
    timings: NotRequired[list[Timings]]


class NamedAnswers(Closed):
    id: str
    model: str
    answers: dict[str, dict[str, Any]]
    """Answers by the names of the questions."""
    usage: ReadUsage
    timings: NotRequired[list[Timings]]


class ScoreUsage(Closed):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ScoresObject(Closed):
    object: Literal["scoring"]
    model: str
    scores: list[list[float]]
    """For each item, those of the labels."""
    x_label_mass: list[float]
    usage: ScoreUsage


class ItemScore(Closed):
    index: int
    object: Literal["score"]
    score: float
    """Probability of the first label."""


class ItemScores(Closed):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ItemScore]
    usage: ScoreUsage


def _usage(reading: Reading) -> ReadUsage:
    tokens, cached = reading.usage.prompt_tokens, reading.usage.cached_tokens
    return {
        "input_tokens": tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": tokens - cached},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens,
    }


def _answer(question: QuestionBody, shares: OptionShares) -> DecisionAnswer:
    name, mass = question.name, shares.mass
    match question:
        case PredicateBody():
            return {
                "type": "predicate",
                "name": name,
                "probability": shares.probabilities[0],
                "x_label_mass": mass,
            }
        case ChoiceBody():
            values = [choice.value for choice in question.choices]
            return {
                "type": "choice",
                "name": name,
                "choice": values[shares.best],
                "confidence": shares.confidence,
                "probabilities": [
                    {"value": value, "probability": p}
                    for value, p in zip(values, shares.probabilities, strict=True)
                ],
                "x_label_mass": mass,
            }
    return {
        "type": "score",
        "name": name,
        "score": shares.level,
        "confidence": shares.confidence,
        "probabilities": [
            {"value": value, "label": level.label, "probability": p}
            for value, (level, p) in enumerate(zip(question.levels, shares.probabilities, strict=True))
        ],
        "x_label_mass": mass,
    }


def answers_of(questions: Sequence[QuestionBody], shares: Sequence[OptionShares]) -> list[DecisionAnswer]:
    """Answers of OpenAI's API."""
    return [_answer(question, each) for question, each in zip(questions, shares, strict=True)]


async def decisions(model: Generation, asked: tuple[DecisionBody, Asked]) -> DecisionObject:
    body, questions = asked
    shares, reading = await decide(model, questions)
    answer: DecisionObject = {
        "id": questions.id,
        "model": model.model.name,
        "answers": answers_of(body.questions, shares),
        "usage": _usage(reading),
    }
    return answer | {"timings": reading.timings} if body.timings else answer


def _named_answer(question: NamedQuestionBody, shares: OptionShares) -> dict[str, Any]:
    mass = {"x_label_mass": shares.mass}
    match question:
        case NoulBody():
            return {"type": "noul", "noul": shares.probabilities[0]} | mass
        case LevelsBody():
            numbers = [str(level) for level in range(len(question.names))]
            return {
                "type": "score",
                "score": shares.level,
                "confidence": shares.confidence,
                "legend": dict(zip(numbers, question.names, strict=True)),
                "probabilities": dict(zip(numbers, shares.probabilities, strict=True)),
            } | mass
    return {
        "type": "choice",
        "choice": question.names[shares.best],
        "confidence": shares.confidence,
        "probabilities": dict(zip(question.names, shares.probabilities, strict=True)),
    } | mass


async def system_one(model: Generation, asked: tuple[SystemOneBody, Asked]) -> NamedAnswers:
    body, questions = asked
    found, reading = await decide(model, questions)
    answer: NamedAnswers = {
        "id": questions.id,
        "model": model.model.name,
        "answers": {
            name: _named_answer(question, shares)
            for (name, question), shares in zip(body.questions.items(), found, strict=True)
        },
        "usage": _usage(reading),
    }
    return answer | {"timings": reading.timings} if body.timings else answer


async def _label_scores(
    model: Generation, body: LabelScoreBody, request_id: str, *, by_default: bool
) -> tuple[list[list[float]], list[float], Reading]:
    """Scores of the labels after each item, their mass. `by_default`: of `apply_softmax`."""
    prompts = await _score_prompts(model, body)
    reading = await read(model, request_id, prompts, list(dict.fromkeys(body.label_token_ids)), body.work)
    among_labels = by_default if body.apply_softmax is None else body.apply_softmax
    scores = [scores_in(row, body.label_token_ids, among_labels=among_labels) for row in reading.rows]
    masses = [softmax(list(row.values()))[1] for row in reading.rows]
    return scores, masses, reading


def scores_in(row: Mapping[int, float], labels: Sequence[int], *, among_labels: bool) -> list[float]:
    """Probabilities of these tokens, among themselves or among all."""
    logprobs = [row[token] for token in labels]
    return list(softmax(logprobs)[0]) if among_labels else [math.exp(logprob) for logprob in logprobs]


async def _score_prompts(model: Generation, body: LabelScoreBody) -> list[list[int]]:
    items = [body.items] if isinstance(body.items, str) else body.items
    pairs = [(item, body.query) if body.item_first else (body.query, item) for item in items]
    if isinstance(body.query, str):
        texts = [one + other for one, other in pairs if isinstance(one, str) and isinstance(other, str)]
        if len(texts) < len(pairs):
            raise InvalidRequest("query and items must both be texts, or both token ids.", param="items")
        if body.add_special_tokens is False:
            return await model.tokenizer.encode_with_shared("", texts)
        return [await model.tokenizer.encode(text) for text in texts]
    if any(isinstance(item, str) for item in items):
        raise InvalidRequest("query and items must both be texts, or both token ids.", param="items")
    return [[*one, *other] for one, other in pairs]


def _score_usage(reading: Reading) -> ScoreUsage:
    tokens = reading.usage.prompt_tokens
    return {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}


async def label_scores(model: Generation, asked: tuple[LabelScoreBody, str]) -> ScoresObject:
    """SGLang's."""
    scores, masses, reading = await _label_scores(model, *asked, by_default=False)
    return {
        "object": "scoring",
        "model": model.model.name,
        "scores": scores,
        "x_label_mass": masses,
        "usage": _score_usage(reading),
    }


async def item_scores(model: Generation, asked: tuple[LabelScoreBody, str]) -> ItemScores:
    """vLLM's."""
    scores, _, reading = await _label_scores(model, *asked, by_default=True)
    data: Sequence[ItemScore] = [
        {"index": index, "object": "score", "score": row[0]} for index, row in enumerate(scores)
    ]
    return {
        "id": asked[1],
        "object": "list",
        "created": int(time.time()),
        "model": model.model.name,
        "data": list(data),
        "usage": _score_usage(reading),
    }
