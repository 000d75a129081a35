"""Runs sequences on an engine of this process until all are answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from baton.lora import LoadedLoras, LoRARequest
from baton.outputs import CompletionOutput, Logprob
from engine.core.events import TokenOut
from engine.core.read import LabelLogprobs, Read
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.errors import UnservableRequest
from engine.loop.engine import Engine
from router.api.decisions.reading import common_prefix
from router.api.generation.completion import Completion, OutputChunk
from router.api.generation.text.tokenizer import Tokenizer
from router.api.media.prompt import NO_MEDIA, PromptMedia
from router.dispatch.adapters.adapted_work import fill_origin
from router.dispatch.token_stream import Delta
from rpc.baton.v1 import sampling_pb2, worker_pb2
from worker.session.convert import FINISH_REASONS, logprobs_to_proto, request_from_proto

_NAMES: Final[dict[int, str]] = {
    sampling_pb2.FINISH_REASON_STOP: "stop",
    sampling_pb2.FINISH_REASON_LENGTH: "length",
}


@dataclass(slots=True, eq=False)
class OfflineSequence:
    prompt: Sequence[int]
    sampling: sampling_pb2.SamplingParams
    completion: Completion
    output: CompletionOutput
    stops: Sequence[str] = ()
    lora: LoRARequest | None = None
    media: PromptMedia = NO_MEDIA


class OfflineRunner:
    """One caller, one thread: that of the engine."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._ids = count(1)

    def run(
        self,
        sequences: Sequence[OfflineSequence],
        loras: LoadedLoras,
        on_end: Callable[[OfflineSequence], object],
    ) -> None:
        """Compute the outputs of the sequences; `on_end` is called with each that has ended.

        A sequence that fails ends with finish_reason "error"; the others go on. Raises EngineError if the
        engine itself fails. On any end, no request is left in the engine.
        """
        active: dict[int, OfflineSequence] = {}
        try:
            for sequence in sequences:
                request = self._request(sequence, loras)
                self._engine.submit(request)
                active[request.id] = sequence
            while active:
                self._step(active, on_end)
        finally:
            for request_id in active:
                self._engine.abort(request_id)
            while self._engine.has_work:  # a step in flight
                self._engine.step()

    def _request(self, sequence: OfflineSequence, loras: LoadedLoras) -> Request:
        work = worker_pb2.Work(
            request_id=next(self._ids),
            prompt=sequence.prompt,
            prompt_keys=sequence.media.keys,
            media=sequence.media.items,
            sampling=sequence.sampling,
        )
        fill_origin(work, loras.get(sequence.lora))
        return request_from_proto(work, arrival=0.0)

    def read(self, prompts: Sequence[Sequence[int]], labels: Sequence[int]) -> list[dict[int, float]]:
        """Log-probabilities of `labels` as the next token after each prompt, by token id.

        Raises ValueError for a prompt or a label that cannot be, EngineError for one that fails.
        """
        shared = common_prefix(prompts) if len(prompts) > 1 and self._engine.kv.states.used else ()
        if shared:  # its recurrent states, for all
            self._read([shared], ())
        return self._read(prompts, tuple(labels))

    def _read(self, prompts: Sequence[Sequence[int]], labels: tuple[int, ...]) -> list[dict[int, float]]:
        requests = [
            Request(next(self._ids), prompt, SamplingParams(max_tokens=0), read=Read(labels))
            for prompt in prompts
        ]
        found: dict[int, dict[int, float]] = {}
        left = {request.id for request in requests}
        try:
            for request in requests:
                self._engine.submit(request)
            while left:
                output = self._engine.step()
                for request, numbers in output.outputs:
                    assert isinstance(numbers, LabelLogprobs)
                    found[request.id] = dict(zip(numbers.ids, numbers.logprobs, strict=True))
                left -= {request.id for request in output.read}
                for _, error in output.failed:
                    raise error
        except UnservableRequest as error:
            raise ValueError(str(error)) from None
        finally:
            for request in requests:
                self._engine.abort(request.id)
            while self._engine.has_work:  # a step in flight
                self._engine.step()
        return [found[request.id] for request in requests]

    def _step(self, active: dict[int, OfflineSequence], on_end: Callable[[OfflineSequence], object]) -> None:
        output = self._engine.step()
        for token in output.tokens:
            request_id = token.request.id
            sequence = active.get(request_id)
            if sequence is None:
                continue  # it ended at a stop string, with this token in flight
            chunk = sequence.completion.feed(_delta(token))
            self._add(sequence.output, chunk)
            if chunk.finish:
                del active[request_id]
                if token.finish is None:
                    self._engine.abort(request_id)
                on_end(sequence)
        for request, error in output.failed:
            if (failed := active.pop(request.id, None)) is not None:
                failed.output.finish_reason, failed.output.error = "error", str(error)
                on_end(failed)

    def _add(self, output: CompletionOutput, chunk: OutputChunk) -> None:
        output.text += chunk.text
        output.token_ids += chunk.token_ids
        if output.logprobs is not None:
            output.logprobs += map(self._logprobs, chunk.token_ids, chunk.logprobs)
        if chunk.finish:
            output.finish_reason, output.stop_reason = _NAMES[chunk.finish], chunk.stop

    def _logprobs(self, token: int, reported: sampling_pb2.TokenLogprobs) -> dict[int, Logprob]:
        ranked = zip(reported.top_ids, reported.top_logprobs, strict=True)
        found = {
            token_id: Logprob(logprob, rank, self._text(token_id))
            for rank, (token_id, logprob) in enumerate(ranked, start=1)
        }
        return {token: Logprob(reported.logprob, reported.rank, self._text(token))} | found

    def _text(self, token_id: int) -> str:
        return self._tokenizer.token_bytes(token_id).decode(errors="replace")


def finish_of(output: CompletionOutput) -> int:
    """The sampling_pb2.FinishReason of an answer without an error."""
    return next(reason for reason, name in _NAMES.items() if name == output.finish_reason)


def _delta(token: TokenOut) -> Delta:
    return Delta(
        token_ids=[token.token],
        logprobs=[] if token.logprobs is None else [logprobs_to_proto(token.logprobs)],
        finish=FINISH_REASONS[token.finish],
        stop_token=token.token if token.is_stop else None,
        cached_tokens=token.request.num_cached,
    )
