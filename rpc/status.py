"""gRPC status codes as typed exceptions."""

from __future__ import annotations

from typing import Final

import grpc

__all__ = ["RpcError", "RpcRefused", "RpcTimeout", "RpcUnreachable", "translate"]


class RpcError(Exception):
    """A call failed. `code` is what the peer or the transport reported."""

    def __init__(self, peer: str, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{peer}: {details or 'no details'} ({code.name})")
        self.peer = peer
        self.code = code
        self.details = details


class RpcUnreachable(RpcError):
    """The peer is down, restarting, or went away during the call: try another."""


class RpcTimeout(RpcError):
    """No answer within the deadline; the call may or may not have had its effect."""


class RpcRefused(RpcError):
    """The peer answered, and the answer is an error."""


_KINDS: Final[dict[grpc.StatusCode, type[RpcError]]] = {
    grpc.StatusCode.UNAVAILABLE: RpcUnreachable,
    grpc.StatusCode.CANCELLED: RpcUnreachable,
    grpc.StatusCode.DEADLINE_EXCEEDED: RpcTimeout,
}


def translate(error: grpc.aio.AioRpcError, peer: str) -> RpcError:
    """`error` of a call to `peer` ("decode-0 at 10.0.0.2:4711") as one of ours."""
    code = error.code()
    return _KINDS.get(code, RpcRefused)(peer, code, error.details() or "")
