"""gRPC status codes as typed exceptions."""

from __future__ import annotations

from typing import Final

import grpc


class RpcError(Exception):
    """A call failed. `code`: the status that the peer or the transport reported."""

    def __init__(self, peer: str, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{peer}: {details or 'no details'} ({code.name})")
        self.peer = peer
        self.code = code
        self.details = details


class RpcUnreachable(RpcError):
    """The peer is down or restarting, or disconnected during the call: retry on another one."""


class RpcTimeout(RpcError):
    """No answer within the deadline; the call may still have been executed."""


class RpcRefused(RpcError):
    """The peer answered with an error."""


_KINDS: Final[dict[grpc.StatusCode, type[RpcError]]] = {
    grpc.StatusCode.UNAVAILABLE: RpcUnreachable,
    grpc.StatusCode.CANCELLED: RpcUnreachable,
    grpc.StatusCode.DEADLINE_EXCEEDED: RpcTimeout,
}


def translate(error: grpc.aio.AioRpcError, peer: str) -> RpcError:
    """The RpcError for a gRPC error of a call to `peer`, such as "decode-0 at 10.0.0.2:4711"."""
    code = error.code()
    return _KINDS.get(code, RpcRefused)(peer, code, error.details() or "")
