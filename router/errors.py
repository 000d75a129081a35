"""Errors of requests; each frontend renders them in its protocol."""

from __future__ import annotations

from typing import ClassVar

from grpc import StatusCode


class RouterError(Exception):
    """A request that was refused or that failed.

    The message is for the client, except for server errors (Unavailable, Internal): then it is for the log,
    and the client gets `public_message`. `param` names the invalid parameter. `code` is for programs, such as
    "context_length_exceeded".
    """

    http_status: ClassVar[int]
    grpc_status: ClassVar[StatusCode]
    openai_type: ClassVar[str]
    default_code: ClassVar[str | None] = None
    plain: ClassVar[str | None] = None
    """The message for clients in place of one with internal details."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        public: bool = False,
    ) -> None:
        """`public`: the message has no internal details and is always sent to the client."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code
        self.retry_after_s = retry_after_s
        """When to retry; None if a retry is useless or the time is unknown."""
        self.public_message = None if public else self.plain
        """The message for the client; None: the message itself."""


class InvalidRequest(RouterError):
    """The request is invalid; do not retry."""

    http_status = 400
    grpc_status = StatusCode.INVALID_ARGUMENT
    openai_type = "invalid_request_error"
    default_code = "invalid_value"


class Unauthenticated(InvalidRequest):
    """The credentials are missing or unknown."""

    http_status = 401
    grpc_status = StatusCode.UNAUTHENTICATED
    default_code = "invalid_api_key"


class PermissionDenied(InvalidRequest):
    """The credentials are valid, but do not permit this."""

    http_status = 403
    grpc_status = StatusCode.PERMISSION_DENIED
    default_code = "permission_denied"


class NotFound(InvalidRequest):
    """There is no such model, request or path."""

    http_status = 404
    grpc_status = StatusCode.NOT_FOUND
    default_code = "not_found"


class MethodNotAllowed(InvalidRequest):
    """The path exists, but not with this HTTP method."""

    http_status = 405
    grpc_status = StatusCode.UNIMPLEMENTED
    default_code = "method_not_allowed"


class NotImplementedHere(InvalidRequest):
    """A known feature that this server does not have."""

    http_status = 501
    grpc_status = StatusCode.UNIMPLEMENTED
    default_code = "not_implemented"


class TooSlow(InvalidRequest):
    """The request did not arrive within its time."""

    http_status = 408
    default_code = "request_timeout"


class TooLarge(InvalidRequest):
    """The body exceeds the limit."""

    http_status = 413
    default_code = "request_too_large"


class UnsupportedMediaType(InvalidRequest):
    """The content type or the content encoding of the body is not supported."""

    http_status = 415
    default_code = "unsupported_media_type"


class HeadersTooLarge(InvalidRequest):
    """The request line and the headers exceed the limit."""

    http_status = 431
    default_code = "headers_too_large"


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
    plain = "The server cannot process this request now; try again later."


class ShuttingDown(Unavailable):
    """This router stops before the request's end. Another one, or the next one, serves the same request."""

    default_code = "shutting_down"

    def __init__(self) -> None:
        super().__init__(
            "The server is shutting down; send the request again.", retry_after_s=1.0, public=True
        )


class DeadlineExceeded(RouterError):
    """The request's time ran out before it was done."""

    http_status = 504
    grpc_status = StatusCode.DEADLINE_EXCEEDED
    openai_type = "timeout_error"
    default_code = "deadline_exceeded"


class Internal(RouterError):
    """A bug of ours."""

    http_status = 500
    grpc_status = StatusCode.INTERNAL
    openai_type = "server_error"
    default_code = "internal_error"
    plain = "The server failed to process this request."
