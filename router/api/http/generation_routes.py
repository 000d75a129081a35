"""Routes that generate text: OpenAI's completions, chat completions and responses, Anthropic's messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from router.api.anthropic.requests import CountTokensBody, MessagesBody
from router.api.anthropic.writer import MessageWriter
from router.api.generation.generation import Generation
from router.api.generation.generation_request import GenerationRequest
from router.api.generation.models import Models
from router.api.generation.off_loop import off_loop
from router.api.generation.params.validation import parse, require_few_parts
from router.api.generation.run import Run
from router.api.http.body import read_json_body
from router.api.http.event_stream import EventStream, Writer, ends_with_client
from router.api.openai.answers.chat_writer import ChatWriter
from router.api.openai.answers.completion_writer import CompletionWriter
from router.api.openai.answers.schemas import Rendered
from router.api.openai.requests import ChatCompletionBody, CompletionBody
from router.api.openai.responses_api.requests import ResponsesBody
from router.api.openai.responses_api.writer import ResponseWriter
from router.api.openai.tokenize import DetokenizeBody, TokenizeBody

_JSON: Final = "application/json"
_BodyT = TypeVar("_BodyT", bound=BaseModel)
_GeneratingT = TypeVar("_GeneratingT", CompletionBody, ChatCompletionBody, ResponsesBody, MessagesBody)
_T = TypeVar("_T")


class GenerationRoutes:
    def __init__(self, models: Models, max_body_bytes: int) -> None:
        self._models = models
        self._max_body_bytes = max_body_bytes

    async def completions(self, request: Request, request_id: str) -> Response:
        return await self._generated(CompletionBody, _completion_writer, request, request_id)

    async def chat_completions(self, request: Request, request_id: str) -> Response:
        return await self._generated(ChatCompletionBody, _chat_writer, request, request_id)

    async def responses(self, request: Request, request_id: str) -> Response:
        return await self._generated(ResponsesBody, _response_writer, request, request_id)

    async def messages(self, request: Request, request_id: str) -> Response:
        return await self._generated(MessagesBody, _message_writer, request, request_id)

    async def _generated(
        self,
        kind: type[_GeneratingT],
        writer_of: Callable[[Run, _GeneratingT, Generation], Writer],
        request: Request,
        request_id: str,
    ) -> Response:
        model, body, asked = await self._read(kind, request, lambda body: body.to_request(request_id))
        async with ends_with_client(request.receive):
            run = await model.start(asked)
            writer = writer_of(run, body, model)
            if body.stream:
                return await EventStream.of(run, writer)
            await run.serve(writer.add)
            return Response(await off_loop(writer.size, writer.body), media_type=_JSON)

    async def count_tokens(self, request: Request, request_id: str) -> Response:
        model, _, chat = await self._read(CountTokensBody, request, CountTokensBody.to_chat)
        prepared = await model.prepare(chat)
        return json_response({"input_tokens": len(prepared.token_ids)})

    async def release_session(self, request: Request, request_id: str) -> Response:
        key = request.path_params["key"]
        self._models.release_session(key)
        return json_response({"object": "session", "key": key, "released": True})

    async def tokenize(self, request: Request, request_id: str) -> Response:
        model, _, prompt = await self._read(TokenizeBody, request, TokenizeBody.to_prompt)
        prepared = await model.prepare(prompt)
        token_ids = list(prepared.token_ids)
        limit = model.model.max_model_len
        return json_response({"count": len(token_ids), "max_model_len": limit, "tokens": token_ids})

    async def render_completions(self, request: Request, request_id: str) -> Response:
        """vLLM's: one object for each prompt."""
        model, _, asked = await self._read(CompletionBody, request, lambda b: b.to_request(request_id))
        return json_response(await _rendered(model, asked))

    async def render_chat(self, request: Request, request_id: str) -> Response:
        """vLLM's: one object."""
        model, _, asked = await self._read(ChatCompletionBody, request, lambda b: b.to_request(request_id))
        (rendered,) = await _rendered(model, asked)
        return json_response(rendered)

    async def detokenize(self, request: Request, request_id: str) -> Response:
        model, _, tokens = await self._read(DetokenizeBody, request, lambda b: b.tokens)
        text = await off_loop(len(tokens), lambda: model.tokenizer.decode(tokens))
        return json_response({"prompt": text})

    async def _read(
        self, kind: type[_BodyT], request: Request, convert: Callable[[_BodyT], _T]
    ) -> tuple[Generation, _BodyT, _T]:
        """The model that the body names, whose bounds apply to other fields; the body, and it converted."""
        raw = await read_json_body(request, self._max_body_bytes)

        def parsed() -> tuple[Generation, _BodyT, _T]:
            require_few_parts(raw)
            model = self._models.find(_model_in(raw))
            body = parse(kind, raw, model.bounds)
            return model, body, convert(body)

        return await off_loop(len(raw), parsed)


def _completion_writer(run: Run, body: CompletionBody, model: Generation) -> Writer:
    return CompletionWriter(run, body, model.tokenizer)


def _chat_writer(run: Run, body: ChatCompletionBody, model: Generation) -> Writer:
    return ChatWriter(run, body, model.tokenizer)


def _response_writer(run: Run, body: ResponsesBody, model: Generation) -> Writer:
    return ResponseWriter(run, body, model.tokenizer, model.model.sampling_defaults)


def _message_writer(run: Run, body: MessagesBody, model: Generation) -> Writer:
    return MessageWriter(run)


class _Named(BaseModel):
    """The only field that is looked at; others are parsed, and no Python objects are made of them."""

    model_config = ConfigDict(extra="ignore")

    model: Any = None


def _model_in(raw: bytes) -> str:
    """Empty if there is none, or if the body is wrong, which `parse` reports."""
    try:
        name = _Named.model_validate_json(raw).model
    except ValidationError:
        return ""
    return name if isinstance(name, str) else ""


async def _rendered(model: Generation, asked: GenerationRequest) -> list[Rendered]:
    """What the request would be computed from; nothing is computed. Raises RouterError."""
    prepared = [await model.prepare(prompt) for prompt in asked.prompts]
    name = model.model.name
    return [
        {"request_id": asked.id, "model": name, "token_ids": list(prompt.token_ids)} for prompt in prepared
    ]


def json_response(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type=_JSON)
