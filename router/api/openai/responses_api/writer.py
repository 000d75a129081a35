"""Renders one run as a Response object, or as the events of its stream.

Parts of the answer become items: reasoning, a message, function calls, in the order of the text. An item
stays open until a part of another kind follows.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

import orjson

from router.api.disclosure import disclosed
from router.api.generation.completion import Chunk
from router.api.generation.output.parts import Arguments, Call, Content, Part, Reasoning
from router.api.generation.run import Run
from router.api.generation.sampling_defaults import OPENAI_DEFAULTS, SamplingDefaults
from router.api.generation.text.tokenizer import Tokenizer
from router.api.openai.answers.chat_parts import new_call_id
from router.api.openai.answers.logprobs import chat_logprobs
from router.api.openai.responses_api.requests import ResponsesBody
from router.api.openai.responses_api.schemas import Item, Response, ResponseUsage
from router.errors import RouterError
from rpc.baton.v1 import sampling_pb2

_LEFT_OUT: Final = "tools_left_out"
_LONGEST_VALUE: Final = 512
"""Longest value of metadata in OpenAI's API."""


class ResponseWriter:
    def __init__(
        self,
        run: Run,
        body: ResponsesBody,
        tokenizer: Tokenizer,
        defaults: SamplingDefaults = OPENAI_DEFAULTS,
    ) -> None:
        """`defaults`: the model's, reported where the body leaves a parameter out."""
        self._run: Final = run
        self._body: Final = body
        self._tokenizer: Final = tokenizer
        self._defaults: Final = defaults
        self._created: Final = int(time.time())
        self._output: Final[list[Item]] = []
        self._finish = 0
        self._sequence = 0
        self._logprobs: list[Any] = []

    def opening(self) -> bytes:
        response = self.answer()
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def event(self, chunk: Chunk) -> bytes:
        """The events of a chunk; each call changes the answer too."""
        parts: list[Part] = chunk.parts if chunk.parts is not None else [Content(chunk.text)]
        if chunk.logprobs:
            self._logprobs += chat_logprobs(self._tokenizer, chunk.token_ids, chunk.logprobs)["content"]
        events = [event for part in parts for event in self._part(part)]
        if chunk.finish:
            if not self._output:
                events += self._open_message()
            complete = chunk.finish == sampling_pb2.FINISH_REASON_STOP and not chunk.cut_call
            events += self._close("completed" if complete else "incomplete")
            self._finish = chunk.finish
        return b"".join(events)

    def closing(self) -> bytes:
        response = self.answer()
        return self._event(f"response.{response['status']}", response=response)

    def failure(self, error: RouterError) -> bytes:
        """The last event of a stream that failed."""
        code, message = error.code or error.openai_type, disclosed(error, self._run.request.id)
        response = self.answer() | {"status": "failed", "error": {"code": code, "message": message}}
        return self._event("response.failed", response=response)

    def answer(self) -> Response:
        """The response so far."""
        body, complete = self._body, self._finish == sampling_pb2.FINISH_REASON_STOP
        return {
            "id": self._run.request.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if complete else None,
            "status": "in_progress" if not self._finish else "completed" if complete else "incomplete",
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if self._finish and not complete else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": _metadata(body),
            "model": self._run.model,
            "output": self._output,
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
            "usage": self._usage() if self._finish else None,
            "user": None,
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

    def _part(self, part: Part) -> list[bytes]:
        match part:
            case Content(""):
                return []
            case Content(text):
                events = self._switch_to("message", self._open_message)
                item = self._output[-1]
                assert item["type"] == "message"
                item["content"][0]["text"] += text
                logprobs, self._logprobs = self._logprobs, []
                item["content"][0]["logprobs"] += logprobs
                return [*events, self._delta("output_text", text, content_index=0, logprobs=logprobs)]
            case Reasoning(text):
                events = self._switch_to("reasoning", self._open_reasoning)
                item = self._output[-1]
                assert item["type"] == "reasoning"
                item["content"][0]["text"] += text
                return [*events, self._delta("reasoning_text", text, content_index=0)]
            case Call(_, name):
                return [*self._close("completed"), *self._open_call(name)]
            case Arguments(_, text):
                item = self._output[-1]
                assert item["type"] == "function_call"
                item["arguments"] += text
                return [self._delta("function_call_arguments", text)]

    def _switch_to(self, kind: str, begin: Callable[[], list[bytes]]) -> list[bytes]:
        """Open an item of this kind; nothing if one is open."""
        if self._output and self._output[-1]["type"] == kind:
            return []
        return [*self._close("completed"), *begin()]

    def _open_message(self) -> list[bytes]:
        added = self._add(
            {"id": _id("msg"), "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        )
        item = self._output[-1]
        assert item["type"] == "message"
        item["content"].append({"type": "output_text", "text": "", "annotations": [], "logprobs": []})
        return [added, self._of_item("response.content_part.added", content_index=0, part=item["content"][0])]

    def _open_reasoning(self) -> list[bytes]:
        added = self._add(
            {"id": _id("rs"), "type": "reasoning", "status": "in_progress", "summary": [], "content": []}
        )
        item = self._output[-1]
        assert item["type"] == "reasoning"
        item["content"].append({"type": "reasoning_text", "text": ""})
        return [added, self._of_item("response.content_part.added", content_index=0, part=item["content"][0])]

    def _open_call(self, name: str) -> list[bytes]:
        return [
            self._add(
                {
                    "id": _id("fc"),
                    "type": "function_call",
                    "status": "in_progress",
                    "call_id": new_call_id(),
                    "name": name,
                    "arguments": "",
                }
            )
        ]

    def _add(self, item: Item) -> bytes:
        self._output.append(item)
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)

    def _close(self, status: Any) -> list[bytes]:
        """The events that end the open item, if any."""
        if not self._output or self._output[-1]["status"] != "in_progress":
            return []
        item = self._output[-1]
        item["status"] = status
        events = []
        if item["type"] == "function_call":
            events.append(
                self._of_item(
                    "response.function_call_arguments.done", arguments=item["arguments"], name=item["name"]
                )
            )
        else:
            part = item["content"][0]
            more = {"logprobs": part["logprobs"]} if part["type"] == "output_text" else {}
            events += [
                self._of_item(f"response.{part['type']}.done", content_index=0, text=part["text"], **more),
                self._of_item("response.content_part.done", content_index=0, part=part),
            ]
        return [
            *events,
            self._event("response.output_item.done", output_index=len(self._output) - 1, item=item),
        ]

    def _delta(self, what: str, text: str, **fields: Any) -> bytes:
        return self._of_item(f"response.{what}.delta", delta=text, **fields)

    def _of_item(self, kind: str, **fields: Any) -> bytes:
        """An event of the open item."""
        index = len(self._output) - 1
        return self._event(kind, item_id=self._output[index]["id"], output_index=index, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(data))


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


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
