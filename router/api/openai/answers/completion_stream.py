"""Answers of OpenAI's API: as one JSON object, or streamed as server-sent events.

Events are a hot path, one per token: constant parts are rendered once, and only the new text passes through
the JSON encoder.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

import orjson

from router.api.generation.completion import Chunk
from router.api.generation.run import Run, Usage
from router.api.generation.text.tokenizer import Tokenizer
from router.api.openai.answers.chat_parts import CollectedParts, PartDeltas
from router.api.openai.answers.logprobs import Entry, prompt_entries, prompt_logprobs
from router.api.openai.answers.serializers import FINISH_REASONS, Serializer
from router.api.openai.errors import error_event
from router.dispatch.waterfall import timings_json
from router.errors import RouterError
from rpc.baton.v1 import sampling_pb2

_ENTRY_BYTES: Final = 64
"""Bytes of an answer per token, and per alternative to it."""
_DONE: Final = b"data: [DONE]\n\n"


class StreamedUsage(Enum):
    """Events of a stream that have the usage so far."""

    NONE = auto()
    LAST_EVENT = auto()
    EVERY_EVENT = auto()


class EventWriter:
    """Renders one run, chunk by chunk. Several events may be returned in one bytes object."""

    def __init__(
        self,
        run: Run,
        serializer: Serializer,
        usage: StreamedUsage = StreamedUsage.NONE,
        *,
        token_ids: bool = False,
    ) -> None:
        """`token_ids`: report those of the prompts and of every event, as vLLM does."""
        self._run: Final = run
        self._serializer: Final = serializer
        self._usage: Final = usage
        self._token_ids: Final = token_ids
        self._began: Final[set[int]] = set()
        """Completions of which an event with token ids was sent."""
        is_scored = serializer.echoes and run.request.options.prompt_logprobs is not None
        self._to_echo: Final = set(range(run.num_completions)) if is_scored else set()
        """Completions whose prompt's log-probabilities are to be sent with their first chunk."""
        self._deltas: Final = [PartDeltas() for _ in range(run.num_completions)]
        self._head: Final = _head(run, serializer.event_object)
        head = orjson.dumps(self._head)[:-1]
        self._before: Final = [
            b'data: %b,"choices":[{"index":%d,%b' % (head, index, serializer.before_text)
            for index in range(run.num_completions)
        ]
        self._after: Final = serializer.after_text + b',"logprobs":null,"finish_reason":null}]%b}\n\n'
        self._after_without_usage: Final = self._after % self._usage_field()

    def opening(self) -> bytes:
        """The events before the first token."""
        events = []
        prompt = {} if self._serializer.prompts_in_choices else self._prompt_ids(0)
        for index in range(self._run.num_completions):
            said = self._serializer.opening(index)
            if said is not None:
                choice = {"index": index} | said | {"logprobs": None, "finish_reason": None}
                events.append(self._rare([choice], self._usage_so_far() | prompt))
        return b"".join(events)

    def event(self, chunk: Chunk) -> bytes:
        """Empty if a chunk has no visible text yet."""
        has_only_text = not (self._token_ids or chunk.finish or chunk.logprobs or chunk.parts is not None)
        if not has_only_text or chunk.index in self._to_echo:
            return self._event(chunk)
        if not chunk.text:
            return b""
        after = self._after_without_usage
        if self._usage is StreamedUsage.EVERY_EVENT:
            after = self._after % self._usage_field()
        return self._before[chunk.index] + orjson.dumps(chunk.text) + after

    def _echo(self, chunk: Chunk) -> bytes:
        """The log-probabilities of the prompt, whose text `opening` has."""
        entries = prompt_entries(chunk.prompt_logprobs)
        logprobs = self._serializer.logprobs(chunk.index, self._run.prompt(chunk.index), entries)
        choice = {"index": chunk.index, "text": "", "logprobs": logprobs, "finish_reason": None}
        return self._rare([choice], self._usage_so_far())

    def _event(self, chunk: Chunk) -> bytes:
        """Event of a chunk that has more than text."""
        if chunk.index in self._to_echo:
            self._to_echo.remove(chunk.index)
            return self._echo(chunk) + self.event(chunk)
        if chunk.parts is not None:
            return self._parsed(chunk)
        serializer = self._serializer
        ending: dict[str, Any] = {
            "logprobs": serializer.logprobs(chunk.index, chunk.token_ids, chunk.logprobs)
            if chunk.logprobs
            else None,
            "finish_reason": FINISH_REASONS[chunk.finish],
            **self._ids(chunk),
        }
        if chunk.finish:
            ending["stop_reason"] = chunk.stop
        timings = b"" if chunk.timings is None else b',"timings":' + orjson.dumps(timings_json(chunk.timings))
        return b"%b%b%b,%b]%b%b}\n\n" % (
            self._before[chunk.index],
            orjson.dumps(chunk.text),
            serializer.after_text,
            orjson.dumps(ending)[1:],
            self._usage_field(),
            timings,
        )

    def failure(self, error: RouterError) -> bytes:
        """The last event of a stream that failed."""
        return error_event(error, self._run.request.id)

    def _parsed(self, chunk: Chunk) -> bytes:
        """One event per part; the last one also has the other fields of the chunk."""
        assert chunk.parts is not None
        deltas = self._deltas[chunk.index]
        more = self._usage_so_far()
        said = [deltas.of(part) for part in chunk.parts]
        if not said and (chunk.finish or chunk.logprobs or self._token_ids):
            said = [{}]
        choices: list[dict[str, Any]] = [
            {"index": chunk.index, "delta": delta, "logprobs": None, "finish_reason": None} for delta in said
        ]
        if not choices:
            return b""
        last = choices[-1]
        if chunk.logprobs:
            last["logprobs"] = self._serializer.logprobs(chunk.index, chunk.token_ids, chunk.logprobs)
        last |= self._ids(chunk)
        events = [self._rare([choice], more) for choice in choices[:-1]]
        if chunk.finish:
            last["finish_reason"] = finish_reason(chunk, has_calls=deltas.has_calls)
            last["stop_reason"] = chunk.stop
            more |= {} if chunk.timings is None else {"timings": timings_json(chunk.timings)}
        return b"".join([*events, self._rare([last], more)])

    def _ids(self, chunk: Chunk) -> dict[str, Any]:
        """vLLM's `token_ids` of a streamed choice, and of the first one the prompt's."""
        if not self._token_ids:
            return {}
        begins = chunk.index not in self._began
        self._began.add(chunk.index)
        prompt = self._prompt_ids(chunk.index) if begins and self._serializer.prompts_in_choices else {}
        return {"token_ids": chunk.token_ids, **prompt}

    def _prompt_ids(self, index: int) -> dict[str, Any]:
        return {"prompt_token_ids": list(self._run.prompt(index))} if self._token_ids else {}

    def closing(self) -> bytes:
        """The events after the last token."""
        if self._usage is StreamedUsage.NONE:
            return _DONE
        return self._rare([], {"usage": _usage(self._run.usage)}) + _DONE

    def _usage_so_far(self) -> dict[str, Any]:
        """The field `usage` of an event that is not the last one."""
        match self._usage:
            case StreamedUsage.NONE:
                return {}
            case StreamedUsage.LAST_EVENT:
                return {"usage": None}
            case StreamedUsage.EVERY_EVENT:
                return {"usage": _usage(self._run.usage)}

    def _usage_field(self) -> bytes:
        """The same as JSON, to follow another field."""
        fields = self._usage_so_far()
        return b"," + orjson.dumps(fields)[1:-1] if fields else b""

    def _rare(self, choices: list[dict[str, Any]], more: dict[str, Any]) -> bytes:
        return b"data: %b\n\n" % orjson.dumps(self._head | {"choices": choices} | more)


@dataclass(slots=True)
class _Gathered:
    """One completion's chunks."""

    texts: list[str] = field(default_factory=list)
    parts: CollectedParts | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[sampling_pb2.TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[sampling_pb2.PromptLogprobs] = field(default_factory=list)


class Answer:
    """Gathers a run's chunks into one answer."""

    def __init__(
        self,
        run: Run,
        serializer: Serializer,
        tokenizer: Tokenizer | None = None,
        *,
        token_ids: bool = False,
    ) -> None:
        """`tokenizer`: to report vLLM's `prompt_logprobs`; None: they were not asked for. `token_ids`: report
        those of the prompts and completions, as vLLM does."""
        self._tokenizer: Final = tokenizer
        self._token_ids: Final = token_ids
        self._run: Final = run
        self._serializer: Final = serializer
        self._gathered: Final = [_Gathered() for _ in range(run.num_completions)]
        self._last: Final[dict[int, Chunk]] = {}

    def add(self, chunk: Chunk) -> None:
        gathered = self._gathered[chunk.index]
        if chunk.parts is None:
            gathered.texts.append(chunk.text)
        else:
            gathered.parts = gathered.parts or CollectedParts()
            gathered.parts.add(chunk.parts)
        gathered.token_ids += chunk.token_ids
        gathered.logprobs += chunk.logprobs
        gathered.prompt_logprobs += chunk.prompt_logprobs
        if chunk.finish:
            self._last[chunk.index] = chunk

    @property
    def size(self) -> int:
        """Bytes of `body`, roughly."""
        entries = sum(len(one.token_ids) for one in self._gathered)
        options = self._run.request.options
        entries *= 1 + (options.logprobs or 0)
        if options.prompt_logprobs is not None:
            prompts = sum(len(self._run.prompt(index)) for index in range(self._run.num_completions))
            entries += prompts * (1 + options.prompt_logprobs)
        return entries * _ENTRY_BYTES

    def body(self) -> bytes:
        """The JSON, after the last chunk of every completion. Takes microseconds for each log-probability.

        Encoded one choice at a time: the encoder holds the interpreter lock.
        """
        run = self._run
        answer = _head(run, self._serializer.whole_object)
        answer["choices"] = [
            orjson.Fragment(orjson.dumps(self._choice(index))) for index in range(run.num_completions)
        ]
        answer["usage"] = _usage(run.usage)
        if not self._serializer.prompts_in_choices:
            answer |= self._prompt(0)
        if (timings := self._last[0].timings) is not None:
            answer["timings"] = timings_json(timings)
        return orjson.dumps(answer)

    def _choice(self, index: int) -> dict[str, Any]:
        gathered, last, serializer = self._gathered[index], self._last[index], self._serializer
        options, parts = self._run.request.options, gathered.parts
        token_ids, logprobs = gathered.token_ids, list[Entry | None](gathered.logprobs)
        if serializer.echoes and options.prompt_logprobs is not None:
            token_ids = [*self._run.prompt(index), *token_ids]
            logprobs = [*prompt_entries(gathered.prompt_logprobs), *logprobs]
        return {
            "index": index,
            **(
                serializer.content(index, "".join(gathered.texts))
                if parts is None
                else {"message": parts.message()}
            ),
            "logprobs": serializer.logprobs(index, token_ids, logprobs)
            if options.logprobs is not None
            else None,
            "finish_reason": finish_reason(last, has_calls=parts is not None and bool(parts.calls)),
            "stop_reason": last.stop,
            **({"token_ids": gathered.token_ids} if self._token_ids else {}),
            **(self._prompt(index) if serializer.prompts_in_choices else {}),
        }

    def _prompt(self, index: int) -> dict[str, Any]:
        """vLLM's fields about a completion's prompt, if they were asked for."""
        prompt, fields = self._run.prompt(index), dict[str, Any]()
        if self._token_ids:
            fields["prompt_token_ids"] = list(prompt)
        if self._tokenizer is not None:
            parts = self._gathered[index].prompt_logprobs
            fields["prompt_logprobs"] = prompt_logprobs(self._tokenizer, prompt, parts)
        return fields


def finish_reason(last: Chunk, *, has_calls: bool) -> str | None:
    """OpenAI's name of the finish reason; `tool_calls` if all of an answer's calls are complete."""
    complete = has_calls and last.finish == sampling_pb2.FINISH_REASON_STOP and not last.cut_call
    return "tool_calls" if complete else FINISH_REASONS[last.finish]


def _head(run: Run, kind: str) -> dict[str, Any]:
    return {"id": run.request.id, "object": kind, "created": int(time.time()), "model": run.model}


def _usage(usage: Usage) -> dict[str, Any]:
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
