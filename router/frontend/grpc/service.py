"""The gRPC frontend: `baton.v1.Router` over the same core as the HTTP API."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, NoReturn

import grpc

from router.errors import InvalidRequest, RouterError
from router.frontend.disclosure import as_router_error, disclosed
from router.processing.completion import Chunk
from router.processing.generation import Generation
from router.processing.generation_request import Chat, GenerationRequest, Prompt
from router.processing.run import Run
from router.processing.sampling_options import SamplingOptions
from rpc.baton.v1 import router_pb2, router_pb2_grpc

__all__ = ["RouterService"]

_ROLES: Final = frozenset({"system", "developer", "user", "assistant"})
"""No tool: a message has no field for the call that it answers."""
_PLAIN_OPTIONS: Final = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
    "ignore_eos",
)

_GenerateContext = grpc.aio.ServicerContext[router_pb2.GenerateRequest, router_pb2.GenerateResponse]
_AbortContext = grpc.aio.ServicerContext[router_pb2.AbortRequest, router_pb2.AbortResponse]
_InfoContext = grpc.aio.ServicerContext[router_pb2.GetModelInfoRequest, router_pb2.ModelInfo]


class RouterService(router_pb2_grpc.RouterServicer):
    """A call that is cancelled, or whose deadline passes, is aborted on the workers."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    async def Generate(  # noqa: N802
        self, request: router_pb2.GenerateRequest, context: _GenerateContext
    ) -> AsyncGenerator[router_pb2.GenerateResponse, None]:
        request_id = request.request_id or f"gen-{secrets.token_hex(12)}"
        try:
            run = await self._generation.start(_request(request, request_id, context.time_remaining()))
            async with aclosing(run.chunks()) as chunks:
                async for chunk in chunks:
                    yield _response(run, chunk)
        except Exception as error:
            await _fail(context, as_router_error(error), request_id)

    async def Abort(  # noqa: N802
        self, request: router_pb2.AbortRequest, context: _AbortContext
    ) -> router_pb2.AbortResponse:
        return router_pb2.AbortResponse(found=self._generation.abort(request.request_id))

    async def GetModelInfo(  # noqa: N802
        self, request: router_pb2.GetModelInfoRequest, context: _InfoContext
    ) -> router_pb2.ModelInfo:
        model = self._generation.model
        return router_pb2.ModelInfo(
            model=model.name,
            mode=model.mode,
            max_model_len=model.max_model_len,
            vocab_size=model.vocab_size,
            prefill_workers=model.prefill_workers,
            decode_workers=model.decode_workers,
            eos_token_ids=model.eos_token_ids,
        )


def _request(
    request: router_pb2.GenerateRequest, request_id: str, time_remaining: float | None
) -> GenerationRequest:
    given = request.sampling
    options = {name: getattr(given, name) for name in _PLAIN_OPTIONS if given.HasField(name)}
    return GenerationRequest(
        id=request_id,
        prompts=[_prompt(request)],
        options=SamplingOptions(
            **options, stop=tuple(given.stop), stop_token_ids=tuple(given.stop_token_ids)
        ),
        model=request.model,
        n=request.n or 1,
        timeout_s=time_remaining or 0.0,
        timings=request.return_timings,
    )


def _prompt(request: router_pb2.GenerateRequest) -> Prompt:
    match request.WhichOneof("prompt"):
        case "text":
            return request.text
        case "token_ids":
            return list(request.token_ids.ids)
        case "chat":
            return Chat([_message(message) for message in request.chat.messages])
        case _:
            raise InvalidRequest("The request has no prompt.", param="prompt")


def _message(message: router_pb2.ChatMessage) -> dict[str, str]:
    if message.role not in _ROLES:
        raise InvalidRequest(
            f"A message's role must be one of {', '.join(sorted(_ROLES))}, not {message.role[:100]!r}.",
            param="chat.messages.role",
        )
    return {"role": message.role, "content": message.content}


def _response(run: Run, chunk: Chunk) -> router_pb2.GenerateResponse:
    response = router_pb2.GenerateResponse(
        request_id=run.request.id,
        index=chunk.index,
        text=chunk.text,
        token_ids=chunk.token_ids,
        logprobs=chunk.logprobs,
        finish_reason=chunk.finish,  # type: ignore[arg-type]
    )
    if chunk.finish:
        usage = run.usage_of(chunk.index)
        response.usage.prompt_tokens = usage.prompt_tokens
        response.usage.completion_tokens = usage.completion_tokens
        response.usage.cached_tokens = usage.cached_tokens
        if chunk.timings is not None:
            response.timings.CopyFrom(chunk.timings)
    return response


async def _fail(context: _GenerateContext, error: RouterError, request_id: str) -> NoReturn:
    """End the call with the error's status; its code and parameter travel as metadata."""
    details = [("baton-code", error.code), ("baton-param", error.param)]
    if error.retry_after_s is not None:
        details.append(("retry-after", f"{error.retry_after_s:g}"))
    metadata = tuple((key, value) for key, value in details if value is not None)
    await context.abort(error.grpc_status, disclosed(error, request_id[:100]), metadata)
