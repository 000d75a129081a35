"""Decisions and scores: questions answered by the probabilities of label tokens, without generated text."""

from __future__ import annotations

from typing import Final

from router.api.decisions import answers
from router.api.decisions.bodies import DecisionBody, LabelScoreBody, SystemOneBody
from router.api.endpoints.kinds import computes
from router.api.endpoints.record import Api
from router.api.openai.answers.schemas import Error
from router.api.openai.errors import error_body

DECISIONS: Final[Api] = Api(
    prefix="/v1/decisions",
    error_body=error_body,
    error=Error,
    endpoints=(
        computes(
            "/v1/decisions",
            DecisionBody,
            lambda body, request_id: (body, body.to_asked(request_id)),
            answers.decisions,
            answers.DecisionObject,
            "Answer questions about an input by the probabilities of their options (OpenAI's Decisions API).",
            "decision",
        ),
        computes(
            "/v1/systemone",
            SystemOneBody,
            lambda body, request_id: (body, body.to_asked(request_id)),
            answers.system_one,
            answers.NamedAnswers,
            "The same in the shape of TypeSafe's API.",
            "systemone",
        ),
        computes(
            "/generative_scoring",
            LabelScoreBody,
            lambda body, request_id: (body, request_id),
            answers.item_scores,
            answers.ItemScores,
            "Probability of the first label token after a query and each item (vLLM's).",
            "score",
        ),
    ),
)
