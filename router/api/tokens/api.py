"""The generate routes of vLLM and SGLang, and their aborts."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from router.api.endpoints.kinds import computes, generates
from router.api.endpoints.record import Api
from router.api.generation.generation import Generation
from router.api.generation.params.bounds import ModelName
from router.api.generation.params.validation import RequestModel
from router.api.openai.answers.schemas import Closed, Error
from router.api.openai.errors import error_body
from router.api.tokens.answers import Generated, GeneratedTokens, ListedTokens
from router.api.tokens.bodies import GenerateBody, RequestId, TokensBody
from router.api.tokens.writers import GenerateWriter, ListsWriter, TokensWriter

_MAX_ABORTED: Final = 65_536


class AbortRequestsBody(RequestModel):
    """vLLM's; requests of the same API key."""

    request_ids: Annotated[list[RequestId], Field(max_length=_MAX_ABORTED)] | None = None
    """Their `request_id` or x-request-id; absent: all."""
    model: ModelName | None = None
    """Absent: the served model."""


class AbortRequestBody(RequestModel):
    """SGLang's; requests of the same API key."""

    rid: str | None = None
    """Its `rid` or x-request-id."""
    abort_all: bool = False
    model: ModelName | None = None
    """Absent: the served model."""


class Aborted(Closed):
    success: Literal[True]
    aborted: int
    """Requests that were running and end with `abort`."""


def _aborted(count: int) -> Aborted:
    return {"success": True, "aborted": count}


async def _abort_some(model: Generation, body: AbortRequestsBody) -> Aborted:
    if body.request_ids is None:
        return _aborted(model.abort_mine())
    return _aborted(model.abort_mine(set(body.request_ids)))


async def _abort_one(model: Generation, body: AbortRequestBody) -> Aborted:
    return _aborted(model.abort_mine(None if body.abort_all else {body.rid or ""}))


TOKENS: Final[Api] = Api(
    error_body=error_body,
    error=Error,
    endpoints=(
        generates(
            "/inference/v1/generate",
            TokensBody,
            TokensWriter,
            answer=GeneratedTokens,
            event=GeneratedTokens,
            summary="Tokens that follow token ids (vLLM's).",
            id_prefix="generate-tokens",
        ),
        generates(
            "/skyrl/v1/generate",
            TokensBody,
            ListsWriter,
            answer=ListedTokens,
            event=ListedTokens,
            summary="The same, with routed experts as lists (SkyRL's).",
            id_prefix="generate-tokens",
        ),
        generates(
            "/generate",
            GenerateBody,
            GenerateWriter,
            answer=Generated | list[Generated],
            event=Generated,
            summary="Tokens and text that follow a text or token ids (SGLang's).",
            id_prefix="generate",
        ),
        computes(
            "/abort_requests",
            AbortRequestsBody,
            lambda body, _: body,
            _abort_some,
            Aborted,
            "End running requests with the tokens that they have (vLLM's).",
        ),
        computes(
            "/abort_request",
            AbortRequestBody,
            lambda body, _: body,
            _abort_one,
            Aborted,
            "End a running request, or all, with the tokens that they have (SGLang's).",
        ),
    ),
)
