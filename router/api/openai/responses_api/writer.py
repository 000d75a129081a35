"""Renders one run as a Response object, or as the events of its stream.

Blocks of the answer become items: reasoning, messages, function calls.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, Final

from router.api.blocks import Block, BlockWriter, Kind, named_event
from router.api.disclosure import disclosed
from router.api.generation.completion import OutputChunk
from router.api.generation.run import Run
from router.api.generation.sampling_defaults import OPENAI_DEFAULTS, SamplingDefaults
from router.api.generation.text.tokenizer import Tokenizer
from router.api.openai.answers.logprobs import chat_logprobs
from router.api.openai.responses_api.requests import ResponsesBody
from router.api.openai.responses_api.schemas import (
    Item,
    OutputReasoningText,
    OutputText,
    Response,
    ResponseUsage,
)
from router.errors import RouterError
from rpc.baton.v1 import sampling_pb2

_LEFT_OUT: Final = "tools_left_out"
_LONGEST_VALUE: Final = 512
"""Longest value of metadata in OpenAI's API."""
_PREFIXES: Final = {Kind.TEXT: "msg", Kind.REASONING: "rs", Kind.CALL: "fc"}
"""Beginnings of the ids of items."""
_NAMES: Final = {
    Kind.TEXT: "output_text",
    Kind.REASONING: "reasoning_text",
    Kind.CALL: "function_call_arguments",
}
"""Names of the text of a block, in events."""


class ResponseWriter(BlockWriter):
    never_empty = True

    def __init__(
        self,
        run: Run,
        body: ResponsesBody,
        tokenizer: Tokenizer,
        defaults: SamplingDefaults = OPENAI_DEFAULTS,
    ) -> None:
        """`defaults`: the model's, reported where the body leaves a parameter out."""
        super().__init__(run)
        self._body: Final = body
        self._tokenizer: Final = tokenizer
        self._defaults: Final = defaults
        self._created: Final = int(time.time())
        self._sequence = 0
        self._logprobs: list[Any] = []
        """Logprobs of tokens without text yet."""

    def opening(self) -> bytes:
        response = self.answer()
        return self._event("created", response=response) + self._event("in_progress", response=response)

    def event(self, chunk: OutputChunk) -> bytes:
        if chunk.logprobs:
            self._logprobs += chat_logprobs(self._tokenizer, chunk.token_ids, chunk.logprobs)["content"]
        return super().event(chunk)

    def closing(self) -> bytes:
        response = self.answer()
        return self._event(response["status"], response=response)

    def failure(self, error: RouterError) -> bytes:
        """The last event of a stream that failed."""
        code, message = error.code or error.openai_type, disclosed(error, self._run.request.id)
        response = self.answer() | {"status": "failed", "error": {"code": code, "message": message}}
        return self._event("failed", response=response)

    def answer(self) -> Response:
        body, finish = self._body, 0 if self._last is None else self._last.finish
        complete = finish == sampling_pb2.FINISH_REASON_STOP
        return {
            "id": self._run.request.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if complete else None,
            "status": "in_progress" if not finish else "completed" if complete else "incomplete",
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if finish and not complete else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": _metadata(body),
            "model": self._run.model,
            "output": [_item(block, _parts(block)) for block in self._blocks],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": body.effort, "summary": None},
            "store": False,
            "temperature": self._defaults.temperature if body.temperature is None else body.temperature,
            "text": _text_options(body),
            "tool_choice": "auto"
            if body.tool_choice is None
            else body.tool_choice
            if isinstance(body.tool_choice, str)
            else body.tool_choice.model_dump(),
            "tools": [tool.model_dump() for tool in body.functions],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": self._defaults.top_p if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": self._usage() if finish else None,
            "user": None,
            **self._extras(),
        }

    def _usage(self) -> ResponseUsage:
        usage = self._run.usage
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }

    def _opened(self, block: Block) -> Iterator[bytes]:
        yield self._event("output_item.added", output_index=block.index, item=_item(block, []))
        for part in _parts(block):
            yield self._in_item("content_part.added", block, part=part)

    def _grown(self, block: Block, text: str) -> bytes:
        more = {}
        if block.kind is Kind.TEXT:
            more["logprobs"], self._logprobs = self._logprobs, []
            block.logprobs += more["logprobs"]
        return self._in_item(f"{_NAMES[block.kind]}.delta", block, delta=text, **more)

    def _closed(self, block: Block) -> Iterator[bytes]:
        parts, whole = _parts(block), dict[str, Any](text=block.text)
        if block.kind is Kind.CALL:
            whole = {"arguments": block.text, "name": block.name}
        elif block.kind is Kind.TEXT:
            whole["logprobs"] = block.logprobs
        yield self._in_item(f"{_NAMES[block.kind]}.done", block, **whole)
        for part in parts:
            yield self._in_item("content_part.done", block, part=part)
        yield self._event("output_item.done", output_index=block.index, item=_item(block, parts))

    def _in_item(self, kind: str, block: Block, **fields: Any) -> bytes:
        """An event of a block."""
        place = {} if block.kind is Kind.CALL else {"content_index": 0}
        return self._event(kind, item_id=_id(block), output_index=block.index, **place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": f"response.{kind}", "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return named_event(data["type"], data)


def _item(block: Block, parts: list[Any]) -> Item:
    key, status = _id(block), block.status
    match block.kind:
        case Kind.TEXT:
            return {"id": key, "type": "message", "role": "assistant", "status": status, "content": parts}
        case Kind.REASONING:
            return {"id": key, "type": "reasoning", "status": status, "summary": [], "content": parts}
        case Kind.CALL:
            return {
                "id": key,
                "type": "function_call",
                "status": status,
                "call_id": f"call_{block.key}",
                "name": block.name,
                "arguments": block.text,
            }


def _parts(block: Block) -> list[Any]:
    """The content of an item; calls have none."""
    part: OutputText | OutputReasoningText
    match block.kind:
        case Kind.CALL:
            return []
        case Kind.REASONING:
            part = {"type": "reasoning_text", "text": block.text}
        case Kind.TEXT:
            part = {"type": "output_text", "text": block.text, "annotations": [], "logprobs": block.logprobs}
    return [part]


def _id(block: Block) -> str:
    return f"{_PREFIXES[block.kind]}_{block.key}"


def _metadata(body: ResponsesBody) -> dict[str, str]:
    """The client's, with a note on tools that the model was not told of."""
    note = {_LEFT_OUT: ", ".join(body.left_out)[:_LONGEST_VALUE]} if body.left_out else {}
    return {**(body.metadata or {}), **note}


def _text_options(body: ResponsesBody) -> dict[str, Any]:
    if body.text is None or body.text.format is None:
        return {"format": {"type": "text"}}
    options = body.text.format.model_dump(exclude_none=True, by_alias=True)
    if "schema" in options:
        options["schema"] = json.loads(options["schema"])
    return {"format": options}
