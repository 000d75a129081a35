"""OpenAI's completions, chat completions and models; tokenization and rendering as in vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from starlette.requests import Request

from router.api.endpoints.kinds import computes, generates, reads
from router.api.endpoints.record import Api, Backend
from router.api.generation.generation import Generation
from router.api.generation.generation_request import GenerationRequest, Prompt
from router.api.generation.off_loop import off_loop
from router.api.openai.answers import schemas
from router.api.openai.answers.chat_writer import ChatWriter
from router.api.openai.answers.completion_writer import CompletionWriter
from router.api.openai.errors import error_body
from router.api.openai.requests import ChatCompletionBody, CompletionBody
from router.api.openai.tokenize import DetokenizeBody, TokenizeBody


async def _tokenize(model: Generation, prompt: Prompt) -> schemas.Tokenized:
    token_ids = list((await model.prepare(prompt)).token_ids)
    return {"count": len(token_ids), "max_model_len": model.model.max_model_len, "tokens": token_ids}


async def _detokenize(model: Generation, tokens: list[int]) -> schemas.Detokenized:
    return {"prompt": await off_loop(len(tokens), lambda: model.tokenizer.decode(tokens))}


async def _render(model: Generation, asked: GenerationRequest) -> list[schemas.Rendered]:
    """What the request would be computed from, for each prompt; nothing is computed."""
    prompts = [(await model.prepare(prompt)).token_ids for prompt in asked.prompts]
    name = model.model.name
    return [{"request_id": asked.id, "model": name, "token_ids": list(prompt)} for prompt in prompts]


async def _render_chat(model: Generation, asked: GenerationRequest) -> schemas.Rendered:
    (rendered,) = await _render(model, asked)
    return rendered


def _models(backend: Backend, request: Request) -> schemas.Models:
    cards = [card for model in backend.models for card in (_card(model), *_adapter_cards(model))]
    return {"object": "list", "data": cards}


def _model(backend: Backend, request: Request) -> schemas.Model:
    """An adapter's card is that of its name, also if it is asked for as `model:adapter`."""
    found = backend.models.find(request.path_params["name"])
    return next((card for card in _adapter_cards(found) if card["id"] == found.model.name), _card(found))


def _adapter_cards(generation: Generation) -> Iterator[schemas.Model]:
    for adapter in () if generation.adapters is None else generation.adapters.names.values():
        card = _card(generation)
        card["id"], card["created"] = adapter.name, adapter.created
        card["root"], card["parent"] = adapter.path, generation.base_name
        yield card


def _card(generation: Generation) -> schemas.Model:
    return {
        "id": generation.model.name,
        "object": "model",
        "created": generation.created,
        "owned_by": "baton",
        "max_model_len": generation.model.max_model_len,
        "model_impl": generation.model.impl.value,
        "no_images": generation.model.no_images,
        "default_sampling_params": generation.model.sampling_defaults.of_its_own(),
    }


OPENAI: Final[Api] = Api(
    vendor="OpenAI",
    error_body=error_body,
    error=schemas.Error,
    endpoints=(
        generates(
            "/v1/chat/completions",
            ChatCompletionBody,
            lambda run, body, model: ChatWriter(run, body, model.tokenizer),
            answer=schemas.ChatCompletion,
            event=schemas.ChatCompletionChunk,
            summary="Answer in a conversation.",
            id_prefix="chatcmpl",
            operation="chat",
        ),
        generates(
            "/v1/completions",
            CompletionBody,
            lambda run, body, model: CompletionWriter(run, body, model.tokenizer),
            answer=schemas.Completion,
            event=schemas.CompletionChunk,
            summary="Continue a text.",
            id_prefix="cmpl",
        ),
        computes(
            "/v1/chat/completions/render",
            ChatCompletionBody,
            ChatCompletionBody.to_request,
            _render_chat,
            schemas.Rendered,
            "Token ids of the prompt.",
            "chatcmpl",
        ),
        computes(
            "/v1/completions/render",
            CompletionBody,
            CompletionBody.to_request,
            _render,
            list[schemas.Rendered],
            "Token ids of the prompts.",
            "cmpl",
        ),
        computes(
            "/tokenize",
            TokenizeBody,
            lambda body, _: body.to_prompt(),
            _tokenize,
            schemas.Tokenized,
            "Token ids of a prompt.",
        ),
        computes(
            "/detokenize",
            DetokenizeBody,
            lambda body, _: body.tokens,
            _detokenize,
            schemas.Detokenized,
            "Text of token ids.",
        ),
        reads("/v1/models", _models, schemas.Models, "The served model, as a list."),
        reads("/v1/models/{name:path}", _model, schemas.Model, "The served model.", "404"),
    ),
)
