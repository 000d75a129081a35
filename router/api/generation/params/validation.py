"""Converts pydantic's errors to InvalidRequest, with the path of the invalid parameter."""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, from_json

from router.api.generation.params.bounds import ServedBounds
from router.errors import InvalidRequest

STRICT: Final = ConfigDict(
    strict=True, allow_inf_nan=False, extra="forbid", use_attribute_docstrings=True, frozen=True
)
"""Configuration of every request model: no type conversions, no unknown fields."""


def _fail_fast(schema: Any) -> None:
    """Set it for every list within a schema of pydantic's core."""
    if isinstance(schema, list):
        for part in schema:
            _fail_fast(part)
    elif isinstance(schema, dict):
        if schema.get("type") in ("list", "tuple"):
            schema["fail_fast"] = True
        for part in schema.values():
            _fail_fast(part)


class RequestModel(BaseModel):
    """Base of bodies of requests and of their parts."""

    model_config = STRICT

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validation of a list ends at its first wrong item: each error takes a kilobyte and 7 µs."""
        schema = handler(source)
        _fail_fast(schema)
        return schema


_MAX_ERRORS: Final = 100
"""More are not looked at: the library renders all or none."""

_BodyT = TypeVar("_BodyT", bound=BaseModel)


_LARGE: Final = 32 << 10
_MAX_PARTS: Final = 100_000
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)'
_STRINGS: Final = re.compile(_STRING, re.DOTALL)
_PIECE: Final = re.compile(rb'(?:[^"]*+%b){1,1000}+' % _STRING, re.DOTALL)
"""With up to a thousand strings: searching holds the interpreter lock."""


def require_few_parts(data: bytes, what: str = "The body", param: str | None = None) -> None:
    """Raise InvalidRequest for JSON with more parts than should be built at once.

    Parts are objects, lists, fields, and each eight items of a list. Parsers hold the interpreter lock: for
    half a second with 1.3 million lists.
    """
    if len(data) > _LARGE and _parts(data) > _MAX_PARTS and _parts_outside_strings(data) > _MAX_PARTS:
        raise InvalidRequest(
            f"{what} has more than {_MAX_PARTS} parts: objects, lists, fields, and each eight items.",
            param=param,
        )


def _parts_outside_strings(data: bytes) -> int:
    """Exact up to _MAX_PARTS."""
    count, at = 0, 0
    while count <= _MAX_PARTS and (piece := _PIECE.match(data, at)) is not None:
        count += _parts(_STRINGS.sub(b"", piece.group()))
        at = piece.end()
    return count + _parts(data[at:])


def _parts(data: bytes) -> int:
    return data.count(b"{") + data.count(b"[") + data.count(b":") + data.count(b",") // 8


def parse(kind: type[_BodyT], body: bytes, bounds: ServedBounds | None = None) -> _BodyT:
    """Parse `body` as a `kind`. Raises InvalidRequest, naming the invalid parameter.

    Without `bounds`, bounds of the served model are left to later checks.
    """
    try:
        return kind.model_validate_json(body, context=bounds)
    except ValidationError as error:
        raise refusal_of(error, body) from None


def refusal_of(error: ValidationError, body: bytes | dict[str, Any]) -> InvalidRequest:
    """The first of the errors in `error`, as InvalidRequest."""
    if (count := error.error_count()) > _MAX_ERRORS:
        return InvalidRequest(f"The body is wrong: {count} fields or values in it are unknown or not valid.")
    [first, *_] = error.errors(include_url=False, include_context=False, include_input=False)
    if first["type"] == "json_invalid":
        return InvalidRequest(f"The body cannot be read. {first['msg']}.", code="invalid_json")
    return _refusal(first, from_json(body) if isinstance(body, bytes) else body)


def _refusal(error: ErrorDetails, body: Any) -> InvalidRequest:
    message, param = error["msg"], _place(error, body)[:100]
    match error["type"]:
        case "missing":
            return InvalidRequest(
                f"The parameter {param} is missing.", param=param, code="missing_required_parameter"
            )
        case "extra_forbidden":
            return InvalidRequest(
                f"Unrecognized request argument: {param}.", param=param, code="unknown_parameter"
            )
        case "none_required":
            return InvalidRequest(
                f"{param} is not supported by this server.", param=param, code="unsupported_parameter"
            )
        case "context_length_exceeded":
            return InvalidRequest(f"{param}: {message}.", param=param, code="context_length_exceeded")
        case "unsupported":
            return InvalidRequest(f"{param}: {message}.", param=param, code="unsupported_parameter")
    if not param:
        return InvalidRequest(f"The body is wrong: {message}.")
    return InvalidRequest(f"The parameter {param} is wrong: {message}.", param=param)


def _place(error: ErrorDetails, body: Any) -> str:
    """The path of keys and indices in `body`; pydantic's path also contains names of union members."""
    here: Any = body
    place: list[int | str] = []
    for depth, step in enumerate(error["loc"]):
        match here, step:
            case dict(), str() if step in here:
                here = here[step]
            case list(), int() if step < len(here):
                here = here[step]
            case _ if error["type"] != "missing" or depth < len(error["loc"]) - 1:
                continue
        place.append(step)
    if error["type"].startswith("union_tag") and isinstance(here, dict):
        place.append("role" if "role" in error["msg"] else "type")
    return ".".join(map(str, place))
