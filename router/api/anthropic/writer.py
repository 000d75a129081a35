"""Renders one run as Anthropic's Message object, or as the events of its stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson

from router.api.anthropic.errors import error_body
from router.api.anthropic.schemas import ContentBlock, InputUsage, Message, MessageUsage
from router.api.blocks import Block, BlockWriter, Kind, named_event
from router.api.cache_hints import HOUR_S, retained
from router.api.openai.messages import arguments_of
from router.errors import RouterError
from rpc.baton.v1 import sampling_pb2

_DELTAS: Final = {
    Kind.TEXT: ("text_delta", "text"),
    Kind.REASONING: ("thinking_delta", "thinking"),
    Kind.CALL: ("input_json_delta", "partial_json"),
}
"""Type of a delta, and the name of the text in it."""


class MessageWriter(BlockWriter):
    def opening(self) -> bytes:
        return _event("message_start", message=self.answer())

    def closing(self) -> bytes:
        message = self.answer()
        delta = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
        return _event("message_delta", delta=delta, usage=message["usage"], **self._extras()) + _event(
            "message_stop"
        )

    def failure(self, error: RouterError) -> bytes:
        """The last event of a stream that failed."""
        return b"event: error\ndata: " + error_body(error, self._run.request.id) + b"\n\n"

    def answer(self) -> Message:
        reason, stop = self._stop()
        return {
            "id": self._run.request.id,
            "type": "message",
            "role": "assistant",
            "model": self._run.model,
            "content": [_content(block) for block in self._blocks],
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": self._usage(),
            **self._extras(),
        }

    def _stop(self) -> tuple[Any, str | None]:
        last = self._last
        if last is None:
            return None, None
        if last.finish != sampling_pb2.FINISH_REASON_STOP:
            return "max_tokens", None
        if any(block.kind is Kind.CALL for block in self._blocks) and not last.cut_call:
            return "tool_use", None
        return ("stop_sequence", last.stop) if isinstance(last.stop, str) else ("end_turn", None)

    def _usage(self) -> MessageUsage:
        usage = self._run.usage
        return {
            **input_usage(usage.prompt_tokens, usage.cached_tokens, retained(self._run.work(0))),
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        }

    def _opened(self, block: Block) -> Iterator[bytes]:
        yield _event("content_block_start", index=block.index, content_block=_content(block))

    def _grown(self, block: Block, text: str) -> bytes:
        kind, name = _DELTAS[block.kind]
        return _event("content_block_delta", index=block.index, delta={"type": kind, name: text})

    def _closed(self, block: Block) -> Iterator[bytes]:
        yield _event("content_block_stop", index=block.index)


def _content(block: Block) -> ContentBlock:
    match block.kind:
        case Kind.TEXT:
            return {"type": "text", "text": block.text}
        case Kind.REASONING:
            return {"type": "thinking", "thinking": block.text, "signature": ""}
        case Kind.CALL:
            arguments = {} if block.status == "in_progress" else _input(block.text)
            return {"type": "tool_use", "id": f"toolu_{block.key}", "name": block.name, "input": arguments}


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
    return named_event(kind, {"type": kind, **fields})
