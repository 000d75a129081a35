"""Answers of a model, as each API writes them: whole, and put together from the events of its stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from router.api.anthropic.writer import MessageWriter
from router.api.endpoints.event_stream import Writer
from router.api.generation.completion import Completion, OutputChunk
from router.api.generation.generation_request import Chat, GenerationRequest
from router.api.generation.output.formats import OutputFormats
from router.api.generation.params.sampling_options import SamplingOptions
from router.api.generation.run import Run
from router.api.generation.text.detokenizer import ByteDetokenizer
from router.api.generation.tools import ToolUse
from router.api.openai.answers.chat_writer import ChatWriter
from router.api.openai.requests import ChatCompletionBody
from router.api.openai.responses_api.requests import ResponsesBody
from router.api.openai.responses_api.writer import ResponseWriter
from router.dispatch.token_stream import Delta
from rpc.baton.v1 import sampling_pb2, worker_pb2

TABLE: Final = [bytes([i]) for i in range(256)]
"""A token for each byte."""
CHAT: Final = ChatCompletionBody.model_validate({"messages": [{"role": "user", "content": "hi"}]})


@dataclass(frozen=True)
class ModelAnswer:
    """What a model says, and how its text is parsed."""

    text: str
    formats: OutputFormats
    use: ToolUse
    finish: int = sampling_pb2.FINISH_REASON_STOP
    stops: tuple[str, ...] = ()
    cuts: tuple[int, ...] = ()
    """Bytes at which the text is divided into chunks."""

    def run(self) -> tuple[Run, list[OutputChunk]]:
        """The run, and its chunks."""
        completion = Completion(
            0, ByteDetokenizer(TABLE), stops=self.stops, parser=self.formats.parser(self.use, "")
        )
        request = GenerationRequest(
            id="r", prompts=[Chat([{"role": "user", "content": "hi"}])], options=SamplingOptions()
        )
        plan = (worker_pb2.Work(prompt=[1]), completion)
        run = Run("small", request, [plan], None, {})  # type: ignore[arg-type]
        return run, list(self._chunks(completion))

    def _chunks(self, completion: Completion) -> Iterator[OutputChunk]:
        tokens = list(self.text.encode())
        ends = sorted({0, *(min(cut, len(tokens)) for cut in self.cuts), len(tokens)})
        for start, end in pairwise([0, *ends]):
            last = end == len(tokens)
            yield completion.feed(Delta(token_ids=tokens[start:end], finish=self.finish if last else 0))
            if completion.finished:
                return


def chat_whole(answer: ModelAnswer) -> dict[str, Any]:
    """The choice."""
    run, chunks = answer.run()
    writer = ChatWriter(run, CHAT, None)  # type: ignore[arg-type]
    for chunk in chunks:
        writer.add(chunk)
    choice: dict[str, Any] = json.loads(writer.body())["choices"][0]
    return choice


def chat_streamed(answer: ModelAnswer) -> dict[str, Any]:
    """The choice, as clients accumulate it: an `index` stays in each call."""
    run, chunks = answer.run()
    writer = ChatWriter(run, CHAT, None)  # type: ignore[arg-type]
    message: dict[str, Any] = {}
    finish = None
    for event in events_of(writer, chunks):
        for choice in event["choices"]:
            finish = choice["finish_reason"] or finish
            delta = choice["delta"]
            for call in delta.pop("tool_calls", ()):
                calls = message.setdefault("tool_calls", [])
                if call["index"] == len(calls):
                    calls.append(call)
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            for name, value in delta.items():
                message[name] = value if name == "role" or value is None else message.get(name, "") + value
    return {"message": message, "finish_reason": finish}


def response_whole(answer: ModelAnswer) -> dict[str, Any]:
    run, chunks = answer.run()
    writer = ResponseWriter(run, ResponsesBody(input="hi"), None)  # type: ignore[arg-type]
    for chunk in chunks:
        writer.add(chunk)
    return _json(writer.body())


def response_streamed(answer: ModelAnswer) -> dict[str, Any]:
    """The response with the items of the events that end them."""
    run, chunks = answer.run()
    writer = ResponseWriter(run, ResponsesBody(input="hi"), None)  # type: ignore[arg-type]
    events = list(events_of(writer, chunks))
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    response: dict[str, Any] = events[-1]["response"] | {"output": items}
    return response


def message_whole(answer: ModelAnswer) -> dict[str, Any]:
    run, chunks = answer.run()
    writer = MessageWriter(run)
    for chunk in chunks:
        writer.add(chunk)
    return _json(writer.body())


def message_streamed(answer: ModelAnswer) -> dict[str, Any]:
    """The message as Anthropic's client accumulates it; input that is no object becomes the empty one."""
    run, chunks = answer.run()
    writer = MessageWriter(run)
    message: dict[str, Any] = {}
    pieces: list[str] = []
    for event in events_of(writer, chunks):
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append(event["content_block"])
                pieces.clear()
            case "content_block_delta":
                kind = {"text_delta": "text", "thinking_delta": "thinking"}.get(event["delta"]["type"])
                if kind is None:
                    pieces.append(event["delta"]["partial_json"])
                else:
                    message["content"][-1][kind] += event["delta"][kind]
            case "content_block_stop" if message["content"][-1]["type"] == "tool_use":
                message["content"][-1]["input"] = _object("".join(pieces))
            case "message_delta":
                message |= event["delta"]
    return message


def _object(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def events_of(writer: Writer, chunks: Sequence[OutputChunk]) -> Iterator[dict[str, Any]]:
    stream = b"".join([writer.opening(), *map(writer.event, chunks), writer.closing()])
    for line in stream.splitlines():
        if line.startswith(b"data: ") and line != b"data: [DONE]":
            yield _json(line[6:])


def _json(body: bytes) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(body)
    return value
