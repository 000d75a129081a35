"""Parts of an answer as OpenAI's chat messages: whole, and as deltas of a stream."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from router.api.generation.output.parts import Arguments, Call, Content, Part, Reasoning


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


@dataclass(slots=True)
class CollectedCall:
    name: str
    id: str = field(default_factory=new_call_id)
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class CollectedParts:
    """Collects the parts of one answer."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[CollectedCall] = field(default_factory=list)

    def add(self, parts: Sequence[Part]) -> None:
        for part in parts:
            match part:
                case Content(text):
                    self.content.append(text)
                case Reasoning(text):
                    self.reasoning.append(text)
                case Call(_, name):
                    self.calls.append(CollectedCall(name))
                case Arguments(index, text):
                    self.calls[index].arguments.append(text)

    def message(self) -> dict[str, Any]:
        """OpenAI's `message`."""
        content = "".join(self.content)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not self.calls else None,
            "refusal": None,
        }
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": "".join(call.arguments)},
                }
                for call in self.calls
            ]
        return message


class PartDeltas:
    """OpenAI's `delta` of each part of one answer."""

    def __init__(self) -> None:
        self.has_calls = False

    def of(self, part: Part) -> dict[str, Any]:
        match part:
            case Content(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning_content": text}
            case Call(index, name):
                self.has_calls = True
                call = {"id": new_call_id(), "type": "function", "function": {"name": name, "arguments": ""}}
                return {"tool_calls": [{"index": index} | call]}
            case Arguments(index, text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
