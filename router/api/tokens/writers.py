"""Writes answers in tokens: vLLM's choices and SGLang's outputs with meta_info."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import orjson

from router.api.generation.audit.answer import Extras
from router.api.generation.completion import OutputChunk
from router.api.generation.generation import Generation
from router.api.generation.run import Run
from router.api.openai.answers.logprobs import Entry, ScoresWanted, chat_logprobs, prompt_entries
from router.api.openai.answers.writer import FINISH_REASONS, usage_object
from router.api.openai.errors import error_event
from router.api.tokens.bodies import GenerateBody, TokensBody
from router.api.tokens.routed import Experts, as_int32, as_npy, experts_of
from router.errors import RouterError
from rpc.baton.v1 import sampling_pb2, worker_pb2

_DONE: Final = b"data: [DONE]\n\n"


@dataclass(slots=True)
class _Answer:
    """The fold of the chunks of one completion."""

    index: int
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Entry] = field(default_factory=list)
    outputs: list[worker_pb2.Output] = field(default_factory=list)
    finish: int = 0
    stop: str | int | None = None
    extras: Extras | None = None

    def add(self, chunk: OutputChunk) -> None:
        self.text.append(chunk.text)
        self.token_ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        self.outputs += chunk.outputs
        self.finish, self.stop, self.extras = chunk.finish, chunk.stop, chunk.extras


class _Writer(ABC):
    """Renders one run, whole or as events."""

    def __init__(self, run: Run, model: Generation) -> None:
        self._run: Final = run
        self._tokenizer: Final = model.tokenizer
        self._weights: Final = model.weights
        self._answers: Final = [_Answer(index) for index in range(run.num_completions)]

    def opening(self) -> bytes:
        return b""

    @abstractmethod
    def event(self, chunk: OutputChunk) -> bytes: ...

    def closing(self) -> bytes:
        return _DONE

    def failure(self, error: RouterError) -> bytes:
        return error_event(error, self._run.request.id)

    def add(self, chunk: OutputChunk) -> None:
        self._answers[chunk.index].add(chunk)

    @abstractmethod
    def body(self) -> bytes: ...

    def _routed(self, answer: _Answer, render: Callable[[Experts], Any]) -> dict[str, Any]:
        """The experts of every token but the last, at the end of an answer that wants them."""
        if not answer.finish or not self._run.work(answer.index).routed_experts:
            return {}
        usage = self._run.usage_of(answer.index)
        aborted = answer.finish == sampling_pb2.FINISH_REASON_ABORT
        count = usage.prompt_tokens + usage.completion_tokens - 1
        experts = experts_of(answer.outputs, count, aborted=aborted)
        return {"routed_experts": None if experts is None else render(experts)}


def _event(content: Any) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(content)


class TokensWriter(_Writer):
    """vLLM's; events have the new tokens."""

    shown: Callable[[Experts], Any] = staticmethod(as_npy)

    def __init__(self, run: Run, body: TokensBody, model: Generation) -> None:
        super().__init__(run, model)
        options = body.stream_options
        self._usage: Final = options is not None and bool(options.include_usage)

    def event(self, chunk: OutputChunk) -> bytes:
        if not (chunk.token_ids or chunk.finish):
            return b""
        new = _Answer(chunk.index)
        new.add(chunk)
        new.outputs = self._answers[chunk.index].outputs
        new.outputs += chunk.outputs
        return _event({"request_id": self._run.request.id, "choices": [self._choice(new)]})

    def closing(self) -> bytes:
        if not self._usage:
            return _DONE
        usage = usage_object(self._run.usage)
        return _event({"request_id": self._run.request.id, "choices": [], "usage": usage}) + _DONE

    def body(self) -> bytes:
        run = self._run
        scores = ScoresWanted.of(run.request.options)
        return orjson.dumps(
            {
                "request_id": run.request.id,
                "choices": [self._choice(answer) for answer in self._answers],
                "usage": usage_object(run.usage),
            }
            | scores.field(self._tokenizer, run.prompt(0), self._answers[0].outputs)
        )

    def _choice(self, answer: _Answer) -> dict[str, Any]:
        logprobs = None
        if self._run.request.options.logprobs is not None:
            logprobs = chat_logprobs(self._tokenizer, answer.token_ids, answer.logprobs, by_id=True)
        return {
            "index": answer.index,
            "token_ids": answer.token_ids,
            "logprobs": logprobs,
            "finish_reason": FINISH_REASONS.get(answer.finish),
            "stop_reason": answer.stop,
            **self._routed(answer, self.shown),
            **(answer.extras or {}),
        }


class ListsWriter(TokensWriter):
    """SkyRL's: vLLM's, with experts as lists."""

    shown = staticmethod(np.ndarray.tolist)


class GenerateWriter(_Writer):
    """SGLang's; each event has the whole answer so far."""

    def __init__(self, run: Run, body: GenerateBody, model: Generation) -> None:
        super().__init__(run, model)
        self._asked: Final = body

    def event(self, chunk: OutputChunk) -> bytes:
        self.add(chunk)
        return _event(self._output(self._answers[chunk.index]))

    def body(self) -> bytes:
        outputs = [self._output(answer) for answer in self._answers]
        return orjson.dumps(outputs if self._asked.is_list else outputs[0])

    def _output(self, answer: _Answer) -> dict[str, Any]:
        run, usage = self._run, self._run.usage_of(answer.index)
        name = run.request.id
        meta: dict[str, Any] = {
            "id": f"{name}-{answer.index}" if self._asked.is_list else name,
            "finish_reason": self._finish(answer),
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "weight_version": "" if self._weights is None else self._weights.served.version,
            **(answer.extras or {}),
        }
        meta |= self._routed(answer, lambda experts: as_int32(experts, self._asked.routed_experts_start_len))
        if self._asked.return_logprob:
            meta |= self._scores(answer)
        return {"text": "".join(answer.text), "output_ids": answer.token_ids, "meta_info": meta}

    def _finish(self, answer: _Answer) -> Mapping[str, Any] | None:
        match answer.finish:
            case sampling_pb2.FINISH_REASON_STOP:
                matched = answer.stop
                if matched is None and answer.token_ids:
                    matched = answer.token_ids[-1]  # the end of sequence
                return {"type": "stop", "matched": matched}
            case sampling_pb2.FINISH_REASON_LENGTH:
                return {"type": "length", "length": len(answer.token_ids)}
            case sampling_pb2.FINISH_REASON_ABORT:
                return {"type": "abort", "message": "Aborted."}
        return None

    def _scores(self, answer: _Answer) -> dict[str, Any]:
        asked = self._asked
        prompt, start = self._run.prompt(answer.index), asked.logprob_start_len
        before: list[Entry | None] = []
        if asked.scores_prompt:
            before = [None, *prompt_entries(answer.outputs)[start + 1 :]][: max(len(prompt) - start, 0)]
        inputs = self._each(prompt[start:] if before else (), before)
        scores: dict[str, Any] = {
            "input_token_logprobs": inputs,
            "output_token_logprobs": self._each(answer.token_ids, answer.logprobs),
        }
        if asked.top_logprobs_num:
            scores["input_top_logprobs"] = [self._tops(entry) for entry in before]
            scores["output_top_logprobs"] = [self._tops(entry) for entry in answer.logprobs]
        if asked.token_ids_logprob:
            scores["output_token_ids_logprobs"] = [self._tops(entry) for entry in answer.logprobs]
        return scores

    def _each(self, token_ids: Sequence[int], entries: Sequence[Entry | None]) -> list[Any]:
        pairs = zip(token_ids, entries, strict=True)
        return [self._scored(token, None if entry is None else entry.logprob) for token, entry in pairs]

    def _tops(self, entry: Entry | None) -> list[Any] | None:
        if entry is None:
            return None
        return [self._scored(*pair) for pair in zip(entry.top_ids, entry.top_logprobs, strict=True)]

    def _scored(self, token: int, logprob: float | None) -> tuple[float | None, int, str | None]:
        text = None
        if self._asked.return_text_in_logprobs:
            text = self._tokenizer.token_bytes(token).decode(errors="replace")
        return logprob, token, text
