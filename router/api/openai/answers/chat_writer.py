"""Answers of POST /v1/chat/completions."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from router.api.generation.completion import OutputChunk
from router.api.generation.output.parts import Arguments, Call, Content, Part, ReasoningPart
from router.api.openai.answers.logprobs import Entry, chat_logprobs
from router.api.openai.answers.writer import AnswerWriter


class ChatWriter(AnswerWriter):
    whole_object = "chat.completion"
    event_object = "chat.completion.chunk"
    before_text = b'"delta":{"content":'
    after_text = b"}"
    prompts_in_choices = False

    def _opening(self, index: int) -> dict[str, Any] | None:
        return {"delta": {"role": "assistant", "content": ""}}

    def _news(self, chunk: OutputChunk) -> list[dict[str, Any]]:
        """One for each part; without one, if there is something else to send."""
        news = [{"delta": _delta(part)} for part in chunk.all_parts]
        return news or ([{"delta": {}}] if chunk.finish or chunk.logprobs or self._token_ids else [])

    def _content(self, whole: OutputChunk) -> dict[str, Any]:
        return {"message": _message(whole.all_parts)}

    def _logprobs(
        self, index: int, token_ids: Sequence[int], logprobs: Sequence[Entry | None]
    ) -> dict[str, Any]:
        entries = [entry for entry in logprobs if entry is not None]
        return chat_logprobs(self._tokenizer, token_ids, entries, by_id=self._named_by_id)


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _delta(part: Part) -> dict[str, Any]:
    match part:
        case Content(text):
            return {"content": text}
        case ReasoningPart(text):
            return {"reasoning_content": text}
        case Call(index, name):
            return {"tool_calls": [{"index": index, **_call(name, "")}]}
        case Arguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": new_call_id(), "type": "function", "function": {"name": name, "arguments": arguments}}


def _message(parts: Sequence[Part]) -> dict[str, Any]:
    """The message whose deltas these parts are."""
    contents, thoughts, calls = list[str](), list[str](), list[tuple[str, list[str]]]()
    for part in parts:
        match part:
            case Content(text):
                contents.append(text)
            case ReasoningPart(text):
                thoughts.append(text)
            case Call(_, name):
                calls.append((name, []))
            case Arguments(index, text):
                calls[index][1].append(text)
    content = "".join(contents)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content if content or not calls else None,
        "refusal": None,
    }
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = [_call(name, "".join(arguments)) for name, arguments in calls]
    return message
