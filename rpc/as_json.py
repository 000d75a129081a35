"""Protobuf messages as JSON: each field under its own name, set or not. Integers stay numbers."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message


def as_json(message: Message) -> dict[str, Any]:
    return {field.name: _value(field, getattr(message, field.name)) for field in message.DESCRIPTOR.fields}


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _value(field: Any, value: Any) -> Any:
    if is_map(field):
        return dict(value)
    if field.message_type is None:
        return list(value) if field.is_repeated else value
    return [as_json(part) for part in value] if field.is_repeated else as_json(value)
