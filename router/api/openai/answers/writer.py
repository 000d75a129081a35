"""Answers of OpenAI's completions and chat completions: whole, or streamed as events.

Events are a hot path, one per token: constant parts are rendered once, and only the new text passes through
the JSON encoder.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import orjson

from router.api.generation.completion import OutputChunk
from router.api.generation.output.parts import Call
from router.api.generation.run import Run, TokenUsage
from router.api.generation.text.tokenizer import Tokenizer
from router.api.openai.answers.logprobs import Entry, ScoresWanted
from router.api.openai.answers.schemas import WeightVersion
from router.api.openai.answers.weight_versions import weight_versions
from router.api.openai.errors import error_event
from router.api.openai.requests import GenerationBody, StreamedUsage
from router.errors import RouterError
from rpc.as_json import as_json
from rpc.baton.v1 import sampling_pb2, worker_pb2

_DONE: Final = b"data: [DONE]\n\n"
FINISH_REASONS: Final[Mapping[int, str]] = {
    sampling_pb2.FINISH_REASON_STOP: "stop",
    sampling_pb2.FINISH_REASON_LENGTH: "length",
    sampling_pb2.FINISH_REASON_ABORT: "abort",
}


class AnswerWriter(ABC):
    """Renders one run: `add` and `body`, or as events. Several events may be in one bytes object."""

    whole_object: ClassVar[str]
    """The `object` of a whole answer."""
    event_object: ClassVar[str]
    """The `object` of an event."""
    before_text: ClassVar[bytes]
    """JSON between the index of an event's choice and its text."""
    after_text: ClassVar[bytes]
    prompts_in_choices: ClassVar[bool]
    """Whether vLLM's fields about a prompt are those of each choice, or of the answer."""

    def __init__(self, run: Run, body: GenerationBody, tokenizer: Tokenizer) -> None:
        self._run: Final = run
        self._tokenizer: Final = tokenizer
        self._usage: Final = body.streamed_usage
        self._token_ids: Final = bool(body.return_token_ids)
        self._named_by_id: Final = bool(body.return_tokens_as_token_ids)
        self._versions: Final[list[_Versions] | None] = (
            [_Versions() for _ in range(run.num_completions)] if body.return_weight_versions else None
        )
        self._scores: Final = ScoresWanted.of(run.request.options, body)
        self._whole: Final = [
            OutputChunk(index, "", [], [], 0, parts=[]) for index in range(run.num_completions)
        ]
        """The fold of each completion's chunks."""
        self._calling: Final[set[int]] = set()
        """Completions with a tool call."""
        self._began: Final[set[int]] = set()
        """Completions of which an event with token ids was sent."""
        self._event_head: Final = self._head(self.event_object)
        head = orjson.dumps(self._event_head)[:-1]
        self._before: Final = [
            b'data: %b,"choices":[{"index":%d,%b' % (head, index, self.before_text)
            for index in range(run.num_completions)
        ]
        self._after: Final = self.after_text + b',"logprobs":null,"finish_reason":null}]%b}\n\n'
        self._after_without_usage: Final = self._after % self._usage_field()

    @abstractmethod
    def _opening(self, index: int) -> dict[str, Any] | None:
        """The content of an event's choice before the first token, if any."""

    @abstractmethod
    def _news(self, chunk: OutputChunk) -> list[dict[str, Any]]:
        """The contents of the events of a chunk."""

    @abstractmethod
    def _content(self, whole: OutputChunk) -> dict[str, Any]:
        """The content of a whole choice."""

    @abstractmethod
    def _logprobs(
        self, index: int, token_ids: Sequence[int], logprobs: Sequence[Entry | None]
    ) -> dict[str, Any]:
        """The logprobs of tokens that follow those of previous calls."""

    def opening(self) -> bytes:
        """The events before the first token."""
        prompt = {} if self.prompts_in_choices else self._prompt_ids(0)
        contents = map(self._opening, range(self._run.num_completions))
        choices = [_choice(index, said) for index, said in enumerate(contents) if said is not None]
        return b"".join([self._rare([choice], self._usage_so_far() | prompt) for choice in choices])

    def event(self, chunk: OutputChunk) -> bytes:
        """Empty if a chunk has no visible text yet."""
        self._note_versions(chunk)
        if self._token_ids or chunk.finish or chunk.logprobs or chunk.parts is not None:
            return self._rare_events(chunk)
        if not chunk.text:
            return b""
        after = self._after_without_usage
        if self._usage is StreamedUsage.EVERY_EVENT:
            after = self._after % self._usage_field()
        return self._before[chunk.index] + orjson.dumps(chunk.text) + after

    def _rare_events(self, chunk: OutputChunk) -> bytes:
        """The last event of a chunk has the fields that are not its text."""
        self._note_calls(chunk)
        news = self._news(chunk)
        if not news:
            return b""
        more = self._usage_so_far()
        choices = [_choice(chunk.index, content) for content in news]
        if chunk.logprobs:
            choices[-1]["logprobs"] = self._logprobs(chunk.index, chunk.token_ids, chunk.logprobs)
        events = [self._rare([choice], more) for choice in choices[:-1]]
        if self._token_ids or chunk.finish:
            choices[-1] |= self._ids(chunk) | self._end(chunk)
            more |= _timings(chunk)
        return b"".join([*events, self._rare(choices[-1:], more)])

    def closing(self) -> bytes:
        """The events after the last token."""
        if self._usage is StreamedUsage.NONE:
            return _DONE
        return self._rare([], {"usage": usage_object(self._run.usage)}) + _DONE

    def failure(self, error: RouterError) -> bytes:
        """The last event of a stream that failed."""
        return error_event(error, self._run.request.id)

    def add(self, chunk: OutputChunk) -> None:
        """Take the next chunk of a whole answer."""
        self._note_calls(chunk)
        self._note_versions(chunk)
        self._whole[chunk.index].add(chunk)

    def body(self) -> bytes:
        """The JSON, after the last chunk of every completion. Takes microseconds for each log-probability.

        Encoded one choice at a time: the encoder holds the interpreter lock.
        """
        answer = self._head(self.whole_object)
        answer["choices"] = [
            orjson.Fragment(orjson.dumps(self._whole_choice(whole))) for whole in self._whole
        ]
        answer["usage"] = usage_object(self._run.usage)
        prompt = {} if self.prompts_in_choices else self._prompt_ids(0) | self._prompt_scores(0)
        return orjson.dumps(answer | prompt | _timings(self._whole[0]))

    def _whole_choice(self, whole: OutputChunk) -> dict[str, Any]:
        choice = _choice(whole.index, self._content(whole)) | self._ids(whole) | self._end(whole)
        if self._run.request.options.logprobs is not None:
            choice["logprobs"] = self._whole_logprobs(whole)
        return choice | (self._prompt_scores(whole.index) if self.prompts_in_choices else {})

    def _whole_logprobs(self, whole: OutputChunk) -> dict[str, Any]:
        return self._logprobs(whole.index, whole.token_ids, whole.logprobs)

    def _end(self, chunk: OutputChunk) -> dict[str, Any]:
        """Fields of a choice's end; the reason is `tool_calls` if all calls of the answer are complete."""
        if not chunk.finish:
            return {}
        complete = chunk.finish == sampling_pb2.FINISH_REASON_STOP and not chunk.cut_call
        calls = complete and chunk.index in self._calling
        reason = "tool_calls" if calls else FINISH_REASONS[chunk.finish]
        more = {} if self._versions is None else {"weight_versions": self._versions[chunk.index].spans()}
        return {"finish_reason": reason, "stop_reason": chunk.stop, **more, **(chunk.extras or {})}

    def _note_versions(self, chunk: OutputChunk) -> None:
        if self._versions is not None:
            self._versions[chunk.index].add(chunk)

    def _note_calls(self, chunk: OutputChunk) -> None:
        if any(isinstance(part, Call) for part in chunk.parts or ()):
            self._calling.add(chunk.index)

    def _prompt_scores(self, index: int) -> dict[str, Any]:
        return self._scores.field(self._tokenizer, self._run.prompt(index), self._whole[index].outputs)

    def _prompt_ids(self, index: int) -> dict[str, Any]:
        return {"prompt_token_ids": list(self._run.prompt(index))} if self._token_ids else {}

    def _ids(self, chunk: OutputChunk) -> dict[str, Any]:
        """vLLM's `token_ids` of a streamed choice, and of the first one the prompt's."""
        if not self._token_ids:
            return {}
        begins = chunk.index not in self._began
        self._began.add(chunk.index)
        prompt = self._prompt_ids(chunk.index) if begins and self.prompts_in_choices else {}
        return {"token_ids": chunk.token_ids, **prompt}

    def _usage_so_far(self) -> dict[str, Any]:
        """The field `usage` of an event that is not the last one."""
        match self._usage:
            case StreamedUsage.NONE:
                return {}
            case StreamedUsage.LAST_EVENT:
                return {"usage": None}
            case StreamedUsage.EVERY_EVENT:
                return {"usage": usage_object(self._run.usage)}

    def _usage_field(self) -> bytes:
        """The same as JSON, to follow another field."""
        fields = self._usage_so_far()
        return b"," + orjson.dumps(fields)[1:-1] if fields else b""

    def _head(self, kind: str) -> dict[str, Any]:
        run = self._run
        return {"id": run.request.id, "object": kind, "created": int(time.time()), "model": run.model}

    def _rare(self, choices: list[dict[str, Any]], more: dict[str, Any]) -> bytes:
        return b"data: %b\n\n" % orjson.dumps(self._event_head | {"choices": choices} | more)


@dataclass(slots=True)
class _Versions:
    """What the chunks of a completion have said about its weights."""

    outputs: list[worker_pb2.Output] = field(default_factory=list)
    num_tokens: int = 0

    def add(self, chunk: OutputChunk) -> None:
        self.outputs += chunk.outputs
        self.num_tokens += len(chunk.token_ids)

    def spans(self) -> list[WeightVersion]:
        return weight_versions(self.outputs, self.num_tokens)


def _choice(index: int, content: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, **content, "logprobs": None, "finish_reason": None}


def _timings(chunk: OutputChunk) -> dict[str, Any]:
    return {} if chunk.timings is None else {"timings": as_json(chunk.timings)}


def usage_object(usage: TokenUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "accepted_prediction_tokens": usage.accepted_predicted,
            "rejected_prediction_tokens": usage.rejected_predicted,
        },
    }
