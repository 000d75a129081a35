"""Routes that generate text: OpenAI's completions, chat completions and responses, Anthropic's messages."""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from router.frontend.anthropic.requests import CountTokensBody, MessagesBody
from router.frontend.anthropic.writer import MessageWriter
from router.frontend.http.body import read_json_body
from router.frontend.http.event_stream import EventStream, ends_with_client
from router.frontend.openai.answers.completion_stream import Answer, EventWriter
from router.frontend.openai.answers.schemas import Rendered
from router.frontend.openai.answers.serializers import ChatSerializer, CompletionSerializer, Serializer
from router.frontend.openai.requests import ChatCompletionBody, CompletionBody, GenerationBody
from router.frontend.openai.responses_api.requests import ResponsesBody
from router.frontend.openai.responses_api.writer import ResponseWriter
from router.frontend.openai.tokenize import DetokenizeBody, TokenizeBody
from router.processing.generation import Generation
from router.processing.models import Models
from router.processing.params.validation import parse
from router.processing.run import Run
from router.processing.text.tokenizer import Tokenizer

_JSON: Final = "application/json"
_BodyT = TypeVar("_BodyT", bound=BaseModel)


class GenerationRoutes:
    def __init__(self, models: Models, max_body_bytes: int) -> None:
        self._models = models
        self._max_body_bytes = max_body_bytes

    async def completions(self, request: Request, request_id: str) -> Response:
        model, body = await self._read(CompletionBody, request)
        async with ends_with_client(request.receive):
            run = await model.start(body.to_request(request_id))
            echo = _echo(run, model.tokenizer) if body.echo else ()
            return await _answer(run, CompletionSerializer(model.tokenizer, echo), body, model.tokenizer)

    async def chat_completions(self, request: Request, request_id: str) -> Response:
        model, body = await self._read(ChatCompletionBody, request)
        async with ends_with_client(request.receive):
            run = await model.start(body.to_request(request_id))
            return await _answer(run, ChatSerializer(model.tokenizer), body, model.tokenizer)

    async def responses(self, request: Request, request_id: str) -> Response:
        model, body = await self._read(ResponsesBody, request)
        async with ends_with_client(request.receive):
            run = await model.start(body.to_request(request_id))
            writer = ResponseWriter(run, body, model.tokenizer)
            if body.stream:
                return await EventStream.of(run, writer)
            await run.serve(writer.event)
            return json_response(writer.answer())

    async def messages(self, request: Request, request_id: str) -> Response:
        model, body = await self._read(MessagesBody, request)
        async with ends_with_client(request.receive):
            run = await model.start(body.to_request(request_id))
            writer = MessageWriter(run)
            if body.stream:
                return await EventStream.of(run, writer)
            await run.serve(writer.event)
            return json_response(writer.answer())

    async def count_tokens(self, request: Request, request_id: str) -> Response:
        model, body = await self._read(CountTokensBody, request)
        prepared = await model.prepare(body.to_chat())
        return json_response({"input_tokens": len(prepared.token_ids)})

    async def release_session(self, request: Request, request_id: str) -> Response:
        key = request.path_params["key"]
        self._models.release_session(key)
        return json_response({"object": "session", "key": key, "released": True})

    async def tokenize(self, request: Request, request_id: str) -> Response:
        model, body = await self._read(TokenizeBody, request)
        prepared = await model.prepare(body.to_prompt())
        token_ids = list(prepared.token_ids)
        limit = model.model.max_model_len
        return json_response({"count": len(token_ids), "max_model_len": limit, "tokens": token_ids})

    async def render_completions(self, request: Request, request_id: str) -> Response:
        """vLLM's: one object for each prompt."""
        return json_response(await _rendered(*await self._read(CompletionBody, request), request_id))

    async def render_chat(self, request: Request, request_id: str) -> Response:
        """vLLM's: one object."""
        (rendered,) = await _rendered(*await self._read(ChatCompletionBody, request), request_id)
        return json_response(rendered)

    async def detokenize(self, request: Request, request_id: str) -> Response:
        model, body = await self._read(DetokenizeBody, request)
        return json_response({"prompt": model.tokenizer.decode(body.tokens)})

    async def _read(self, kind: type[_BodyT], request: Request) -> tuple[Generation, _BodyT]:
        """The body, and the model that it names, whose bounds apply to the other fields."""
        raw = await read_json_body(request, self._max_body_bytes)
        model = self._models.find(_model_in(raw))
        return model, parse(kind, raw, model.bounds)


def _model_in(raw: bytes) -> str:
    """Empty if there is none, or if the body is wrong, which `parse` reports."""
    try:
        name = orjson.loads(raw)["model"]
    except (ValueError, TypeError, KeyError):
        return ""
    return name if isinstance(name, str) else ""


async def _rendered(
    model: Generation, body: CompletionBody | ChatCompletionBody, request_id: str
) -> list[Rendered]:
    """What the request would be computed from; nothing is computed. Raises RouterError."""
    prepared = [await model.prepare(prompt) for prompt in body.to_request(request_id).prompts]
    name = model.model.name
    return [
        {"request_id": request_id, "model": name, "token_ids": list(prompt.token_ids)} for prompt in prepared
    ]


async def _answer(run: Run, shape: Serializer, body: GenerationBody, tokenizer: Tokenizer) -> Response:
    token_ids = bool(body.return_token_ids)
    if body.stream:
        return await EventStream.of(run, EventWriter(run, shape, body.streamed_usage, token_ids=token_ids))
    reports_prompt = body.prompt_logprobs is not None
    answer = Answer(run, shape, tokenizer if reports_prompt else None, token_ids=token_ids)
    await run.serve(answer.add)
    if run.request.options.prompt_logprobs is None:
        return Response(answer.body(), media_type=_JSON)
    return Response(await asyncio.to_thread(answer.body), media_type=_JSON)


def _echo(run: Run, tokenizer: Tokenizer) -> list[str]:
    """The prompt of every completion, as text."""
    prompts = [
        prompt if isinstance(prompt, str) else tokenizer.decode(run.prompt(i * run.request.n))
        for i, prompt in enumerate(run.request.prompts)
    ]
    return [prompt for prompt in prompts for _ in range(run.request.n)]


def json_response(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type=_JSON)
