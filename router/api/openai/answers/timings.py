"""The type of an answer's timings, made from their protobuf message."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from rpc.as_json import is_map
from rpc.baton.v1 import router_pb2

_SCALARS: Final = {
    FieldDescriptor.CPPTYPE_DOUBLE: float,
    FieldDescriptor.CPPTYPE_STRING: str,
    FieldDescriptor.CPPTYPE_UINT32: int,
    FieldDescriptor.CPPTYPE_UINT64: int,
}


@cache
def _json_type(message: Descriptor) -> Any:
    """The type of what `as_json` makes of a message, with its name."""
    typed = TypedDict(message.name, {field.name: _type(field) for field in message.fields})  # type: ignore[misc]
    return with_config(ConfigDict(extra="forbid"))(typed)


def _type(field: FieldDescriptor) -> Any:
    message = field.message_type
    if message is not None and is_map(field):
        key, value = map(_type, message.fields)
        return dict[key, value]  # type: ignore[valid-type]
    kind = _SCALARS[field.cpp_type] if message is None else _json_type(message)
    return list[kind] if field.is_repeated else kind  # type: ignore[valid-type]


if TYPE_CHECKING:
    Timings: TypeAlias = dict[str, Any]
else:
    Timings = _json_type(router_pb2.Timings.DESCRIPTOR)
    Timings.__doc__ = "Breakdown of the time to the first tokens; docs/architecture.md explains the stages."
