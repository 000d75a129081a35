"""Anthropic's Messages API."""

from __future__ import annotations

from typing import Final

from router.api.anthropic.errors import error_body
from router.api.anthropic.requests import CountTokensBody, MessagesBody
from router.api.anthropic.schemas import InputTokens, Message, MessageError, MessageEvent
from router.api.anthropic.writer import MessageWriter
from router.api.endpoints.kinds import computes, generates
from router.api.endpoints.record import Api
from router.api.generation.generation import Generation
from router.api.generation.generation_request import Chat


async def _count(model: Generation, chat: Chat) -> InputTokens:
    return {"input_tokens": len((await model.prepare(chat)).token_ids)}


ANTHROPIC: Final[Api] = Api(
    vendor="Anthropic",
    prefix="/v1/messages",
    key_header="x-api-key",
    error_body=error_body,
    error=MessageError,
    endpoints=(
        generates(
            "/v1/messages",
            MessagesBody,
            lambda run, body, model: MessageWriter(run),
            answer=Message,
            event=MessageEvent,
            summary="Answer in a conversation (Anthropic's Messages API).",
            id_prefix="msg",
            operation="chat",
        ),
        computes(
            "/v1/messages/count_tokens",
            CountTokensBody,
            lambda body, _: body.to_chat(),
            _count,
            InputTokens,
            "Tokens of a conversation.",
        ),
    ),
)
