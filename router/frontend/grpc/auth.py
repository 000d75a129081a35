"""Authenticates gRPC calls by API key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn, TypeVar

import grpc

from router.errors import Unauthenticated
from router.frontend.api_keys import ApiKeys
from router.processing.clients import CURRENT_CLIENT

_OPEN: Final = "/grpc.health.v1.Health/"
"""Open to orchestrators without a key."""

_RequestT = TypeVar("_RequestT")
_ResponseT = TypeVar("_ResponseT")


class RequireApiKey(grpc.aio.ServerInterceptor):
    """A server interceptor, which covers all services of a server."""

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
    """A handler that refuses calls of any kind before reading them."""

    async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
        await context.abort(error.grpc_status, error.message)

    return grpc.stream_stream_rpc_method_handler(refuse)
