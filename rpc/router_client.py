"""A typed client of the router's gRPC API.

```
async with RouterClient("127.0.0.1:50051") as client:
    async for piece in client.generate("Once upon a time", max_tokens=32, temperature=0.0):
        print(piece.text, end="")
    answer = await client.answer([ChatMessage(role="user", content="Hello")], timeout_s=10)
```
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeAlias

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message

from rpc.baton.v1 import router_pb2, router_pb2_grpc, sampling_pb2, status_pb2
from rpc.baton.v1.router_pb2 import Chat, ChatMessage, Tool, ToolCall

__all__ = [
    "CallFailed",
    "Chat",
    "ChatMessage",
    "Prompt",
    "RouterAnswer",
    "RouterClient",
    "Tool",
    "ToolCall",
]

Prompt: TypeAlias = str | Sequence[int] | Sequence[ChatMessage] | Chat
"""Text, token ids, or a conversation."""
_SAMPLING: Final = set(sampling_pb2.SamplingParams.DESCRIPTOR.fields_by_name)
_DETAILS: Final = "grpc-status-details-bin"


class CallFailed(Exception):
    """The server refused the call, or it failed."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        super().__init__(error.details())
        self.status: Final = error.code()
        self.reason = ""
        """Such as CONTEXT_LENGTH_EXCEEDED; empty if the error is not the server's."""
        self.request_id = ""
        """Request id in the server's log."""
        self.param: str | None = None
        """The invalid field of the request; None: not a field's fault."""
        self.retry_after_s: float | None = None
        """When to retry; None if a retry does not help."""
        for detail in _details(error):
            match detail.type_url.rpartition(".")[2]:
                case "ErrorInfo":
                    info = status_pb2.RpcErrorInfo.FromString(detail.value)
                    self.reason, self.request_id = info.reason, info.metadata["request_id"]
                case "BadRequest":
                    violations = status_pb2.RpcBadRequest.FromString(detail.value).field_violations
                    self.param = violations[0].field if violations else None
                case "RetryInfo":
                    retry = status_pb2.RpcRetryInfo.FromString(detail.value)
                    self.retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()


def _details(error: grpc.aio.AioRpcError) -> Sequence[any_pb2.Any]:
    for key, value in error.trailing_metadata():
        if key == _DETAILS and isinstance(value, bytes):
            return status_pb2.RpcStatus.FromString(value).details
    return ()


@dataclass(slots=True)
class RouterAnswer:
    """A complete answer."""

    text: str = ""
    """The raw output of the model. For a chat, `content` has it without reasoning and tool calls."""
    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: int = sampling_pb2.FINISH_REASON_UNSPECIFIED
    usage: router_pb2.Usage = field(default_factory=router_pb2.Usage)

    def add(self, piece: router_pb2.GenerateResponse) -> None:
        self.text += piece.text
        self.token_ids += piece.token_ids
        if not piece.parts:
            return
        for part in piece.parts:
            match part.WhichOneof("kind"):
                case "content":
                    self.content += part.content
                case "reasoning":
                    self.reasoning += part.reasoning
                case "call":
                    self.calls.append(part.call)
                case "arguments":
                    self.calls[-1].arguments += part.arguments


class RouterClient:
    """Client of one router. All methods belong to one asyncio loop."""

    def __init__(
        self,
        target: str,
        *,
        model: str = "",
        api_key: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        """`target`: host:port. `model`: of all requests; empty if the router has only one. Without
        `credentials` nothing is encrypted.
        """
        self._model: Final = model
        self._channel: Final = (
            grpc.aio.insecure_channel(target)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials)
        )
        self._stub: Final = router_pb2_grpc.RouterStub(self._channel)  # type: ignore[no-untyped-call]
        self._metadata: Final = () if api_key is None else (("authorization", f"Bearer {api_key}"),)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def generate(
        self,
        prompt: Prompt,
        *,
        request_id: str = "",
        timeout_s: float | None = None,
        **fields: Any,
    ) -> AsyncGenerator[router_pb2.GenerateResponse, None]:
        """Stream a completion. Raises CallFailed. Closing the iterator aborts the request.

        `fields`: those of SamplingParams and GenerateRequest in proto/baton/v1; missing ones have defaults.
        Raises ValueError for unknown ones.
        """
        sampling = {name: fields.pop(name) for name in fields.keys() & _SAMPLING}
        request = router_pb2.GenerateRequest(
            request_id=request_id,
            model=self._model,
            sampling=sampling_pb2.SamplingParams(**sampling),
            **fields,
        )
        if isinstance(prompt, str):
            request.text = prompt
        elif isinstance(prompt, Chat):
            request.chat.CopyFrom(prompt)
        elif messages := [message for message in prompt if isinstance(message, ChatMessage)]:
            request.chat.messages.extend(messages)
        else:
            request.token_ids.ids.extend(token for token in prompt if isinstance(token, int))
        call = self._stub.Generate(request, timeout=timeout_s, metadata=self._metadata)
        try:
            async for piece in call:
                yield piece
        except grpc.aio.AioRpcError as error:
            raise CallFailed(error) from None
        finally:
            call.cancel()

    async def answer(self, prompt: Prompt, *, timeout_s: float | None = None, **fields: Any) -> RouterAnswer:
        """The whole completion; see `generate`. Raises CallFailed."""
        answer = RouterAnswer()
        async for piece in self.generate(prompt, timeout_s=timeout_s, **fields):
            answer.add(piece)
            if piece.finish_reason:
                answer.finish_reason, answer.usage = piece.finish_reason, piece.usage
        return answer

    async def tokenize(self, prompt: str | Chat) -> Sequence[int]:
        """Raises CallFailed."""
        request = router_pb2.TokenizeRequest(model=self._model)
        if isinstance(prompt, str):
            request.text = prompt
        else:
            request.chat.CopyFrom(prompt)
        response: router_pb2.TokenizeResponse = await self._call(self._stub.Tokenize, request)
        return list(response.ids)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Raises CallFailed."""
        request = router_pb2.DetokenizeRequest(model=self._model, ids=token_ids)
        response: router_pb2.DetokenizeResponse = await self._call(self._stub.Detokenize, request)
        return response.text

    async def release_session(self, cache_key: str) -> None:
        """End what requests with this `cache_key` have retained. Raises CallFailed."""
        await self._call(self._stub.ReleaseSession, router_pb2.ReleaseSessionRequest(cache_key=cache_key))

    async def abort(self, request_id: str) -> bool:
        """Abort a request; False if no such request runs. Raises CallFailed."""
        request = router_pb2.AbortRequest(request_id=request_id)
        response: router_pb2.AbortResponse = await self._call(self._stub.Abort, request)
        return response.found

    async def model_info(self) -> router_pb2.ModelInfo:
        """Raises CallFailed."""
        request = router_pb2.GetModelInfoRequest(model=self._model)
        info: router_pb2.ModelInfo = await self._call(self._stub.GetModelInfo, request)
        return info

    async def _call(self, method: Callable[..., Awaitable[Any]], request: Message) -> Any:
        try:
            return await method(request, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise CallFailed(error) from None
