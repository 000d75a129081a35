"""OpenAI's Responses API, without state."""

from __future__ import annotations

from typing import Final

from router.api.endpoints.kinds import generates
from router.api.endpoints.record import Api
from router.api.openai.answers.schemas import Error
from router.api.openai.errors import error_body
from router.api.openai.responses_api.requests import ResponsesBody
from router.api.openai.responses_api.schemas import Response, ResponseEvent
from router.api.openai.responses_api.writer import ResponseWriter

RESPONSES: Final[Api] = Api(
    vendor="OpenAI",
    prefix="/v1/responses",
    error_body=error_body,
    error=Error,
    endpoints=(
        generates(
            "/v1/responses",
            ResponsesBody,
            lambda run, body, model: ResponseWriter(
                run, body, model.tokenizer, model.model.sampling_defaults
            ),
            answer=Response,
            event=ResponseEvent,
            summary="Answer in a conversation (OpenAI's Responses API).",
            id_prefix="resp",
            operation="chat",
        ),
    ),
)
