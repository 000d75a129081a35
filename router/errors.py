"""What can go wrong with a request, once: every front door renders these errors its own way."""

from __future__ import annotations

from typing import ClassVar

from grpc import StatusCode

__all__ = [
    "DeadlineExceeded",
    "Internal",
    "InvalidRequest",
    "MethodNotAllowed",
    "NotFound",
    "Overloaded",
    "RouterError",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
]


class RouterError(Exception):
    """A request that was refused or that failed; the message is meant for the client.

    `param` names the parameter at fault. `code` is for programs, such as "context_length_exceeded".
    """

    http_status: ClassVar[int]
    grpc_status: ClassVar[StatusCode]
    openai_type: ClassVar[str]
    default_code: ClassVar[str | None] = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code
        self.retry_after_s = retry_after_s
        """When to try again; None where trying again is no use or there is nothing to say about it."""


class InvalidRequest(RouterError):
    """The request itself is at fault; sending it again will not help."""

    http_status = 400
    grpc_status = StatusCode.INVALID_ARGUMENT
    openai_type = "invalid_request_error"


class Unauthenticated(InvalidRequest):
    """The caller did not say who it is, or nobody knows it."""

    http_status = 401
    grpc_status = StatusCode.UNAUTHENTICATED
    default_code = "invalid_api_key"


class NotFound(InvalidRequest):
    """There is no such model, request or path."""

    http_status = 404
    grpc_status = StatusCode.NOT_FOUND


class MethodNotAllowed(InvalidRequest):
    """The path exists, but not with this HTTP method."""

    http_status = 405
    grpc_status = StatusCode.UNIMPLEMENTED


class TooLarge(InvalidRequest):
    """The body exceeds the limit."""

    http_status = 413
    default_code = "request_too_large"


class Overloaded(RouterError):
    """Queues are full; try again after `retry_after_s`."""

    http_status = 429
    grpc_status = StatusCode.RESOURCE_EXHAUSTED
    openai_type = "rate_limit_error"
    default_code = "overloaded"

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after_s: float = 1.0
    ) -> None:
        super().__init__(message, param=param, code=code, retry_after_s=retry_after_s)


class Unavailable(RouterError):
    """No worker can take or finish the request now: starting, draining, or retries used up."""

    http_status = 503
    grpc_status = StatusCode.UNAVAILABLE
    openai_type = "server_error"
    default_code = "unavailable"


class DeadlineExceeded(RouterError):
    """The request's time ran out before it was done."""

    http_status = 504
    grpc_status = StatusCode.DEADLINE_EXCEEDED
    openai_type = "timeout_error"
    default_code = "deadline_exceeded"


class Internal(RouterError):
    """A bug of ours. The log has the details; the client gets none of them."""

    http_status = 500
    grpc_status = StatusCode.INTERNAL
    openai_type = "server_error"
    default_code = "internal_error"
