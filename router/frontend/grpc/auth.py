"""Lets gRPC calls in that bring an API key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn, TypeVar

import grpc

from router.errors import Unauthenticated
from router.frontend.api_keys import ApiKeys
from router.processing.clients import CURRENT_CLIENT

__all__ = ["RequireApiKey"]

_OPEN: Final = "/grpc.health.v1.Health/"
"""Orchestrators ask this, without a key, and learn nothing else."""

_RequestT = TypeVar("_RequestT")
_ResponseT = TypeVar("_ResponseT")


class RequireApiKey(grpc.aio.ServerInterceptor):
    """Covers every service of a server, those to come included."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[_RequestT, _ResponseT] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_RequestT, _ResponseT] | None:
        if not handler_call_details.method.startswith(_OPEN):
            authorization = dict(handler_call_details.invocation_metadata).get("authorization")
            try:
                client = self._keys.identify(authorization if isinstance(authorization, str) else None)
            except Unauthenticated as error:
                return _refusal(error)
            CURRENT_CLIENT.set(client)
        return await continuation(handler_call_details)


def _refusal(error: Unauthenticated) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler for calls of any kind: it answers before it reads."""

    async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
        await context.abort(error.grpc_status, error.message)

    return grpc.stream_stream_rpc_method_handler(refuse)
