"""The gRPC frontend: `baton.v1.Router`, on the same core as the HTTP API."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Final, NoReturn, TypeAlias

import grpc
from google.protobuf.message import Message

from engine.core.sampling_params import MAX_LOGIT_BIASES
from router.api.disclosure import as_router_error, disclosed
from router.api.generation.audit.answer import Detail
from router.api.generation.completion import OutputChunk
from router.api.generation.envelope import of_grpc
from router.api.generation.generation import Generation
from router.api.generation.generation_request import GenerationRequest, Prompt
from router.api.generation.models import ServedModels
from router.api.generation.off_loop import off_loop
from router.api.generation.output.parts import Arguments, Call, Content, Part, ReasoningPart
from router.api.generation.params.bounds import MAX_STOP_IDS, MAX_STOPS
from router.api.generation.params.constraint import constraint_from_proto
from router.api.generation.params.sampling_options import SamplingOptions
from router.api.generation.run import Run
from router.api.grpc.prompts import chat_of, prompt_of
from router.api.openai.answers.chat_writer import new_call_id
from router.api.openai.tokenize import MAX_DETOKENIZED
from router.dispatch.sequence import CURRENT_REQUEST, RequestIdentity, TraceContext, clients_id_of
from router.errors import InvalidRequest, RouterError
from rpc.baton.v1 import router_pb2, router_pb2_grpc, sampling_pb2, status_pb2, worker_pb2

DETAILS_KEY: Final = "grpc-status-details-bin"
_TYPE: Final = "type.googleapis.com/google.rpc."


def trailing_metadata(
    error: RouterError, message: str, request_id: str
) -> tuple[tuple[str, str | bytes], ...]:
    """The rich status, and its fields as plain metadata for clients that cannot decode it."""
    plain = [("baton-code", error.code), ("baton-param", error.param)]
    if error.retry_after_s is not None:
        plain.append(("retry-after", f"{error.retry_after_s:g}"))
    details = (DETAILS_KEY, _status(error, message, request_id).SerializeToString())
    return (*((key, value) for key, value in plain if value is not None), details)


def _status(error: RouterError, message: str, request_id: str) -> status_pb2.RpcStatus:
    status = status_pb2.RpcStatus(code=error.grpc_status.value[0], message=message)
    reason = (error.code or error.openai_type).upper()
    info = status_pb2.RpcErrorInfo(reason=reason, domain="baton", metadata={"request_id": request_id})
    _add(status, "ErrorInfo", info)
    if error.param is not None:
        violation = status_pb2.RpcBadRequest.FieldViolation(field=error.param, description=message)
        _add(status, "BadRequest", status_pb2.RpcBadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        retry = status_pb2.RpcRetryInfo()
        retry.retry_delay.FromTimedelta(timedelta(seconds=error.retry_after_s))
        _add(status, "RetryInfo", retry)
    return status


def _add(status: status_pb2.RpcStatus, name: str, detail: Message) -> None:
    status.details.add(type_url=_TYPE + name, value=detail.SerializeToString())


_REQUEST_ID_KEY: Final = "x-request-id"
_MAX_ID_CHARACTERS: Final = 128

_LONGEST: Final = {"stop": MAX_STOPS, "stop_token_ids": MAX_STOP_IDS, "logit_bias": MAX_LOGIT_BIASES}

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class RouterService(router_pb2_grpc.RouterServicer):
    """Calls that are cancelled, or whose deadline passes, are aborted on the workers."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    async def Generate(  # noqa: N802
        self, request: router_pb2.GenerateRequest, context: _Context
    ) -> AsyncGenerator[router_pb2.GenerateResponse, None]:
        request_id = f"gen-{secrets.token_hex(12)}"
        try:
            request_id = _checked_id(request.request_id) or request_id
            identity = _identity(request, request_id, context)
            CURRENT_REQUEST.set(identity)
            if identity.clients_id:
                await context.send_initial_metadata(((_REQUEST_ID_KEY, identity.clients_id),))
            generation = self._models.find(request.model)
            generation.check_messages(len(request.chat.messages))
            remaining = context.time_remaining()
            size = request.ByteSize()
            asked = await off_loop(size, lambda: _request(request, request_id, remaining))
            run = await generation.start(asked)
            async with aclosing(run.chunks()) as chunks:
                async for chunk in chunks:
                    for output in chunk.outputs:
                        yield _output_response(request_id, chunk.index, output)
                    yield _response(run, chunk)
        except Exception as error:
            await _fail(context, as_router_error(error), request_id)

    async def Abort(  # noqa: N802
        self, request: router_pb2.AbortRequest, context: _Context
    ) -> router_pb2.AbortResponse:
        return router_pb2.AbortResponse(found=self._models.abort(request.request_id))

    async def ReleaseSession(  # noqa: N802
        self, request: router_pb2.ReleaseSessionRequest, context: _Context
    ) -> router_pb2.ReleaseSessionResponse:
        try:
            self._models.release_session(request.cache_key)
        except RouterError as error:
            await _fail(context, error, _call_id())
        return router_pb2.ReleaseSessionResponse()

    async def Tokenize(  # noqa: N802
        self, request: router_pb2.TokenizeRequest, context: _Context
    ) -> router_pb2.TokenizeResponse:
        try:
            generation = self._models.find(request.model)
            generation.check_messages(len(request.chat.messages))
            prompt: Prompt = request.text
            if request.HasField("chat"):
                prompt = await off_loop(request.ByteSize(), lambda: chat_of(request.chat))
            prepared = await generation.prepare(prompt)
        except Exception as error:
            await _fail(context, as_router_error(error), _call_id())
        return router_pb2.TokenizeResponse(ids=prepared.token_ids)

    async def Detokenize(  # noqa: N802
        self, request: router_pb2.DetokenizeRequest, context: _Context
    ) -> router_pb2.DetokenizeResponse:
        try:
            generation = self._models.find(request.model)
            _check_count(request.ids)
            generation.check_ids(request.ids, "ids")
            ids = list(request.ids)
            text = await off_loop(len(ids), lambda: generation.tokenizer.decode(ids))
        except Exception as error:
            await _fail(context, as_router_error(error), _call_id())
        return router_pb2.DetokenizeResponse(text=text)

    async def GetModelInfo(  # noqa: N802
        self, request: router_pb2.GetModelInfoRequest, context: _Context
    ) -> router_pb2.ModelInfo:
        try:
            return _info(self._models.find(request.model))
        except RouterError as error:
            await _fail(context, error, _call_id())

    async def ListModels(  # noqa: N802
        self, request: router_pb2.ListModelsRequest, context: _Context
    ) -> router_pb2.ListModelsResponse:
        return router_pb2.ListModelsResponse(models=map(_info, self._models))


def _info(generation: Generation) -> router_pb2.ModelInfo:
    model = generation.model
    return router_pb2.ModelInfo(
        model=model.name,
        mode=model.mode,
        max_model_len=model.max_model_len,
        vocab_size=model.vocab_size,
        prefill_workers=generation.workers(worker_pb2.ROLE_PREFILL),
        decode_workers=generation.workers(worker_pb2.ROLE_DECODE),
        eos_token_ids=model.eos_token_ids,
    )


def _check_count(ids: Sequence[int]) -> None:
    """Raises InvalidRequest."""
    if len(ids) > MAX_DETOKENIZED:
        raise InvalidRequest(f"There are more than {MAX_DETOKENIZED} ids.", param="ids")


def _call_id() -> str:
    return f"call-{secrets.token_hex(12)}"


def _identity(request: router_pb2.GenerateRequest, request_id: str, context: _Context) -> RequestIdentity:
    metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    operation = "chat" if request.HasField("chat") else "text_completion"
    clients_id = clients_id_of(metadata.get(_REQUEST_ID_KEY))
    return RequestIdentity(request_id, TraceContext.of(metadata.get("traceparent")), operation, clients_id)


def _checked_id(request_id: str) -> str:
    """Raises InvalidRequest for an id unfit for logs; it is also repeated in every response."""
    if len(request_id) > _MAX_ID_CHARACTERS or not request_id.isprintable():
        raise InvalidRequest(
            f"request_id must have at most {_MAX_ID_CHARACTERS} characters, all of them printable.",
            param="request_id",
        )
    return request_id


def _request(
    request: router_pb2.GenerateRequest, request_id: str, time_remaining: float | None
) -> GenerationRequest:
    drafts = request.sampling.drafts
    work = of_grpc(request, timeout_s=time_remaining or 0.0)
    work.weight_versions = request.weight_versions
    return GenerationRequest(
        id=request_id,
        prompts=[prompt_of(request)],
        options=_options(request.sampling),
        n=request.n or 1,
        work=work,
        prediction=drafts.prediction,
        speculative=not drafts.off,
        timings=request.return_timings,
        audit=Detail.asked(request.receipt),
    )


def _options(sampling: sampling_pb2.SamplingParams) -> SamplingOptions:
    """Fields of equal names. Raises InvalidRequest for an unknown kind of grammar, and for long lists."""
    for name, most in _LONGEST.items():
        if len(getattr(sampling, name)) > most:
            raise InvalidRequest(f"sampling.{name} has more than {most} entries.", param=name)
    given = {field.name: value for field, value in sampling.ListFields()}
    given.pop("drafts", None)
    if grammar := given.pop("grammar", None):
        given["constraint"] = constraint_from_proto(grammar, "sampling.grammar")
    given |= {"stop": tuple(sampling.stop), "stop_token_ids": tuple(sampling.stop_token_ids)}
    return SamplingOptions(**given | {"logit_bias": dict(sampling.logit_bias)})


def _output_response(request_id: str, index: int, output: worker_pb2.Output) -> router_pb2.GenerateResponse:
    """An output is a field of the same name."""
    kind = output.WhichOneof("kind")
    assert kind is not None
    response = router_pb2.GenerateResponse(request_id=request_id, index=index)
    getattr(response, kind).CopyFrom(getattr(output, kind))
    return response


def _response(run: Run, chunk: OutputChunk) -> router_pb2.GenerateResponse:
    response = router_pb2.GenerateResponse(
        request_id=run.request.id,
        index=chunk.index,
        text=chunk.text,
        token_ids=chunk.token_ids,
        logprobs=chunk.logprobs,
        finish_reason=chunk.finish,  # type: ignore[arg-type]
        parts=[_part(part) for part in chunk.parts or ()],
    )
    if chunk.finish:
        usage = run.usage_of(chunk.index)
        response.usage.prompt_tokens = usage.prompt_tokens
        response.usage.completion_tokens = usage.completion_tokens
        response.usage.cached_tokens = usage.cached_tokens
        response.usage.reasoning_tokens = usage.reasoning_tokens
        if chunk.timings is not None:
            response.timings.CopyFrom(chunk.timings)
        for name, value in (chunk.extras or {}).items():
            setattr(response, name, json.dumps(value))
    return response


def _part(part: Part) -> router_pb2.Part:
    match part:
        case Content(text):
            return router_pb2.Part(content=text)
        case ReasoningPart(text):
            return router_pb2.Part(reasoning=text)
        case Call(_, name):
            return router_pb2.Part(call=router_pb2.ToolCall(id=new_call_id(), name=name))
        case Arguments(_, text):
            return router_pb2.Part(arguments=text)


async def _fail(context: _Context, error: RouterError, request_id: str) -> NoReturn:
    """End the call with the error's status and its details."""
    message = disclosed(error, request_id)
    await context.abort(error.grpc_status, message, trailing_metadata(error, message, request_id))
