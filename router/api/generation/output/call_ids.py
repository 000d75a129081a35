"""Ids of calls in a conversation, where a chat template requires a form of its own.

Clients send the ids that this server or another one gave them; a call and its result keep equal ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

_ID_LENGTH: Final = 9


def with_short_ids(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Call ids as Mistral's templates require them: nine letters and digits.

    Other ids, which clients got from other servers, are replaced by a digest, equal for a call and its
    result.
    """
    return [_short(message) for message in messages]


def _short(message: Mapping[str, Any]) -> Mapping[str, Any]:
    short = dict(message)
    if "tool_call_id" in short:
        short["tool_call_id"] = _short_id(short["tool_call_id"])
    if "tool_calls" in short:
        short["tool_calls"] = [{**call, "id": _short_id(call["id"])} for call in short["tool_calls"]]
    return short


def _short_id(call_id: str) -> str:
    if len(call_id) == _ID_LENGTH and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:_ID_LENGTH]


def with_numbered_ids(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Call ids as Kimi's templates write them, in which an id has the only name of the tool.

    `functions.NAME:NUMBER`, numbered through the conversation.
    """
    ids: dict[str, str] = {}
    numbered: list[Mapping[str, Any]] = []
    for message in messages:
        changed = dict(message)
        if calls := message.get("tool_calls"):
            for call in calls:
                ids[call["id"]] = f"functions.{call['function']['name']}:{len(ids)}"
            changed["tool_calls"] = [{**call, "id": ids[call["id"]]} for call in calls]
        if "tool_call_id" in message:
            changed["tool_call_id"] = ids.get(message["tool_call_id"], message["tool_call_id"])
        numbered.append(changed)
    return numbered
