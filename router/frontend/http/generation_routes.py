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
from router.frontend.http.disconnect import ends_with_client
from router.frontend.http.event_stream import EventStream
from router.frontend.openai.answers import Rendered
from router.frontend.openai.requests import ChatCompletionBody, CompletionBody, GenerationBody
from router.frontend.openai.responses import Answer, EventWriter
from router.frontend.openai.responses_api.requests import ResponsesBody
from router.frontend.openai.responses_api.writer import ResponseWriter
from router.frontend.openai.serializers import ChatSerializer, CompletionSerializer, Serializer
from router.frontend.openai.tokenize import DetokenizeBody, TokenizeBody
from router.processing.generation import Generation
from router.processing.params.validation import parse
from router.processing.run import Run

__all__ = ["GenerationRoutes", "json_response"]

_JSON: Final = "application/json"
_BodyT = TypeVar("_BodyT", bound=BaseModel)


class GenerationRoutes:
    def __init__(self, generation: Generation, max_body_bytes: int) -> None:
        self._generation = generation
        self._max_body_bytes = max_body_bytes

    async def completions(self, request: Request, request_id: str) -> Response:
        body = await self._read(CompletionBody, request)
        async with ends_with_client(request.receive):
            run = await self._generation.start(body.to_request(request_id))
            echo = self._echo(run) if body.echo else ()
            return await self._answer(run, CompletionSerializer(self._generation.tokenizer, echo), body)

    async def chat_completions(self, request: Request, request_id: str) -> Response:
        body = await self._read(ChatCompletionBody, request)
        async with ends_with_client(request.receive):
            run = await self._generation.start(body.to_request(request_id))
            return await self._answer(run, ChatSerializer(self._generation.tokenizer), body)

    async def responses(self, request: Request, request_id: str) -> Response:
        body = await self._read(ResponsesBody, request)
        async with ends_with_client(request.receive):
            run = await self._generation.start(body.to_request(request_id))
            writer = ResponseWriter(run, body, self._generation.tokenizer)
            if body.stream:
                return await EventStream.of(run, writer)
            await run.serve(writer.event)
            return json_response(writer.answer())

    async def messages(self, request: Request, request_id: str) -> Response:
        body = await self._read(MessagesBody, request)
        async with ends_with_client(request.receive):
            run = await self._generation.start(body.to_request(request_id))
            writer = MessageWriter(run)
            if body.stream:
                return await EventStream.of(run, writer)
            await run.serve(writer.event)
            return json_response(writer.answer())

    async def count_tokens(self, request: Request, request_id: str) -> Response:
        body = await self._read(CountTokensBody, request)
        self._generation.check_model(body.model)
        prepared = await self._generation.prepare(body.to_chat())
        return json_response({"input_tokens": len(prepared.token_ids)})

    async def tokenize(self, request: Request, request_id: str) -> Response:
        body = await self._read(TokenizeBody, request)
        self._generation.check_model(body.model or "")
        prepared = await self._generation.prepare(body.to_prompt())
        token_ids = list(prepared.token_ids)
        limit = self._generation.model.max_model_len
        return json_response({"count": len(token_ids), "max_model_len": limit, "tokens": token_ids})

    async def render_completions(self, request: Request, request_id: str) -> Response:
        """vLLM's: one object for each prompt."""
        return json_response(await self._rendered(await self._read(CompletionBody, request), request_id))

    async def render_chat(self, request: Request, request_id: str) -> Response:
        """vLLM's: one object."""
        (rendered,) = await self._rendered(await self._read(ChatCompletionBody, request), request_id)
        return json_response(rendered)

    async def _rendered(self, body: CompletionBody | ChatCompletionBody, request_id: str) -> list[Rendered]:
        """What the request would be computed from; nothing is computed. Raises RouterError."""
        wanted = body.to_request(request_id)
        self._generation.check_model(wanted.model)
        prepared = [await self._generation.prepare(prompt) for prompt in wanted.prompts]
        model = self._generation.model.name
        return [
            {"request_id": request_id, "model": model, "token_ids": list(prompt.token_ids)}
            for prompt in prepared
        ]

    async def detokenize(self, request: Request, request_id: str) -> Response:
        body = await self._read(DetokenizeBody, request)
        self._generation.check_model(body.model or "")
        return json_response({"prompt": self._generation.tokenizer.decode(body.tokens)})

    async def _read(self, kind: type[_BodyT], request: Request) -> _BodyT:
        return parse(kind, await read_json_body(request, self._max_body_bytes), self._generation.bounds)

    async def _answer(self, run: Run, shape: Serializer, body: GenerationBody) -> Response:
        token_ids = bool(body.return_token_ids)
        if body.stream:
            return await EventStream.of(
                run, EventWriter(run, shape, body.streamed_usage, token_ids=token_ids)
            )
        reports_prompt = body.prompt_logprobs is not None
        tokenizer = self._generation.tokenizer if reports_prompt else None
        answer = Answer(run, shape, tokenizer, token_ids=token_ids)
        await run.serve(answer.add)
        if run.request.options.prompt_logprobs is None:
            return Response(answer.body(), media_type=_JSON)
        return Response(await asyncio.to_thread(answer.body), media_type=_JSON)

    def _echo(self, run: Run) -> list[str]:
        """The prompt of every completion, as text."""
        prompts = [
            prompt
            if isinstance(prompt, str)
            else self._generation.tokenizer.decode(run.prompt(i * run.request.n))
            for i, prompt in enumerate(run.request.prompts)
        ]
        return [prompt for prompt in prompts for _ in range(run.request.n)]


def json_response(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type=_JSON)
