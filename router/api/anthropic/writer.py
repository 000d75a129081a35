"""Renders one run as Anthropic's Message object, or as the events of its stream."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

import orjson

from router.api.anthropic.errors import error_body
from router.api.anthropic.schemas import ContentBlock, InputUsage, Message, MessageUsage
from router.api.cache_hints import HOUR_S
from router.api.generation.completion import Chunk
from router.api.generation.output.parts import Arguments, Call, Content, Part, Reasoning
from router.api.generation.run import Run
from router.api.openai.messages import arguments_of
from router.errors import RouterError
from rpc.baton.v1 import sampling_pb2


class MessageWriter:
    """A content block stays open until a part of another kind follows."""

    def __init__(self, run: Run) -> None:
        self._run: Final = run
        self._content: Final[list[ContentBlock]] = []
        self._arguments: list[str] = []
        self._open = False
        self._last: Chunk | None = None

    def opening(self) -> bytes:
        return _event("message_start", message=self.answer())

    def event(self, chunk: Chunk) -> bytes:
        """The events of a chunk; each call changes the answer too."""
        parts: list[Part] = chunk.parts if chunk.parts is not None else [Content(chunk.text)]
        events = [event for part in parts for event in self._part(part)]
        if chunk.finish:
            events += self._close()
            self._last = chunk
        return b"".join(events)

    def closing(self) -> bytes:
        message = self.answer()
        delta = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
        return _event("message_delta", delta=delta, usage=message["usage"]) + _event("message_stop")

    def failure(self, error: RouterError) -> bytes:
        """The last event of a stream that failed."""
        return b"event: error\ndata: " + error_body(error, self._run.request.id) + b"\n\n"

    def answer(self) -> Message:
        """The message so far."""
        reason, stop = self._stop()
        return {
            "id": self._run.request.id,
            "type": "message",
            "role": "assistant",
            "model": self._run.model,
            "content": self._content,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": self._usage(),
        }

    def _stop(self) -> tuple[Any, str | None]:
        last = self._last
        if last is None:
            return None, None
        if last.finish != sampling_pb2.FINISH_REASON_STOP:
            return "max_tokens", None
        if any(block["type"] == "tool_use" for block in self._content) and not last.cut_call:
            return "tool_use", None
        return ("stop_sequence", last.stop) if isinstance(last.stop, str) else ("end_turn", None)

    def _usage(self) -> MessageUsage:
        usage = self._run.usage
        return {
            **input_usage(usage.prompt_tokens, usage.cached_tokens, self._run.retained(0)),
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        }

    def _part(self, part: Part) -> list[bytes]:
        match part:
            case Content(""):
                return []
            case Content(text):
                events = self._begin({"type": "text", "text": ""})
                block = self._content[-1]
                assert block["type"] == "text"
                block["text"] += text
                return [*events, self._delta(type="text_delta", text=text)]
            case Reasoning(text):
                events = self._begin({"type": "thinking", "thinking": "", "signature": ""})
                block = self._content[-1]
                assert block["type"] == "thinking"
                block["thinking"] += text
                return [*events, self._delta(type="thinking_delta", thinking=text)]
            case Call(_, name):
                call_id = f"toolu_{secrets.token_hex(12)}"
                return [
                    *self._close(),
                    *self._begin({"type": "tool_use", "id": call_id, "name": name, "input": {}}),
                ]
            case Arguments(_, text):
                self._arguments.append(text)
                return [self._delta(type="input_json_delta", partial_json=text)]

    def _begin(self, block: ContentBlock) -> list[bytes]:
        """Open a block of this kind; nothing if one is open."""
        if self._open and self._content[-1]["type"] == block["type"]:
            return []
        events = self._close()
        event = _event("content_block_start", index=len(self._content), content_block=block)
        self._content.append(block)
        self._open = True
        return [*events, event]

    def _close(self) -> list[bytes]:
        if not self._open:
            return []
        self._open = False
        block = self._content[-1]
        if block["type"] == "tool_use":
            block["input"] = _input("".join(self._arguments))
            self._arguments = []
        return [_event("content_block_stop", index=len(self._content) - 1)]

    def _delta(self, **delta: Any) -> bytes:
        return _event("content_block_delta", index=len(self._content) - 1, delta=delta)


def input_usage(prompt: int, cached: int, prefixes: Sequence[tuple[int, float]]) -> InputUsage:
    """How the input tokens of a message are divided: read from the prefix cache, retained in it, and others.

    `cached`: tokens of a prompt that were in the prefix cache. `prefixes`: tokens of beginnings that are
    retained, and for how many seconds: a token for the longest of its times.
    """
    end = max((tokens for tokens, _ in prefixes), default=0)
    hour_end = max((tokens for tokens, seconds in prefixes if seconds >= HOUR_S), default=0)
    created, for_an_hour = max(0, end - cached), max(0, hour_end - cached)
    return {
        "input_tokens": prompt - cached - created,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": created,
        "cache_creation": {
            "ephemeral_5m_input_tokens": created - for_an_hour,
            "ephemeral_1h_input_tokens": for_an_hour,
        },
    }


def _input(text: str) -> Any:
    """The arguments of a call, as an object; if possible in the model's text: integers may have any size."""
    arguments = arguments_of(text)
    return arguments if not arguments or "invalid_json" in arguments else orjson.Fragment(text)


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))
