"""Errors of calls as gRPC's rich status."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from google.protobuf.message import Message

from router.errors import RouterError
from rpc.baton.v1 import status_pb2

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
