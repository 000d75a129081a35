"""One completion: turns tokens into text, and ends it at stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from router.api.generation.audit.answer import Extras
from router.api.generation.output.cut_call import CutCall
from router.api.generation.output.parts import Content, OutputParser, Part
from router.api.generation.output.reasoning import ReasoningCounter
from router.api.generation.text.detokenizer import Detokenizer
from router.api.generation.text.stop_strings import StopFinder
from router.dispatch.token_stream import Delta
from rpc.baton.v1 import router_pb2, sampling_pb2, worker_pb2

_STOP: Final = sampling_pb2.FINISH_REASON_STOP
_LENGTH: Final = sampling_pb2.FINISH_REASON_LENGTH
_ABORT: Final = sampling_pb2.FINISH_REASON_ABORT


@dataclass(slots=True)
class OutputChunk:
    """New output of one completion."""

    index: int
    """Index of the completion: first those of the first prompt, then those of the second, and so on."""
    text: str
    token_ids: list[int]
    logprobs: list[sampling_pb2.TokenLogprobs]
    """One per token, or none."""
    finish: int
    """A sampling_pb2.FinishReason; 0 except in the last chunk."""
    stop: str | int | None = None
    """With the last chunk: the stop string or stop token that ended the completion; None after EOS."""
    timings: router_pb2.Timings | None = None
    """With the last chunk."""
    outputs: list[worker_pb2.Output] = field(default_factory=list)
    """What the request gets besides tokens, in order: with the first chunk, rows of tokens with any."""
    parts: list[Part] | None = None
    """The parts of `text` if it is parsed; None: all of it is content."""
    extras: Extras | None = None
    """With the last chunk: further fields of the answer that the request asked for."""
    cut_call: bool = False
    """With the last chunk: the answer ends within a tool call, which must not be run."""

    @property
    def all_parts(self) -> Sequence[Part]:
        """The parts; without a parser, the whole text as content."""
        return (Content(self.text),) if self.parts is None else self.parts

    def add(self, later: OutputChunk) -> None:
        """Continue with the next chunk of the completion, all but its `text`; needs `parts`."""
        assert self.parts is not None
        self.parts += later.all_parts
        self.token_ids += later.token_ids
        self.logprobs += later.logprobs
        self.outputs += later.outputs
        self.finish, self.stop, self.timings = later.finish, later.stop, later.timings
        self.extras = later.extras
        self.cut_call = later.cut_call


class Completion:
    """Turns the deltas of one sequence into chunks, in constant time per token."""

    __slots__ = (
        "_counter",
        "_cut_call",
        "_detokenizer",
        "_finder",
        "_min_tokens",
        "_parser",
        "_prompt_only",
        "_stop_token_ids",
        "accepted_predicted",
        "cached_tokens",
        "finished",
        "index",
        "num_tokens",
        "rejected_predicted",
    )

    def __init__(
        self,
        index: int,
        detokenizer: Detokenizer,
        *,
        stops: tuple[str, ...] = (),
        stop_token_ids: tuple[int, ...] = (),
        min_tokens: int = 0,
        prompt_only: bool = False,
        parser: OutputParser | None = None,
        counter: ReasoningCounter | None = None,
    ) -> None:
        """`prompt_only`: no token is part of it; workers sample one, since they end with a token."""
        self.index: Final = index
        self.num_tokens = 0
        """Tokens generated so far, without those after a stop string."""
        self.cached_tokens = 0
        self.accepted_predicted = self.rejected_predicted = 0
        """Tokens of the client's prediction that were verified."""
        self.finished = False
        self._detokenizer: Final = detokenizer
        self._finder: Final = StopFinder(stops) if stops else None
        self._stop_token_ids: Final = stop_token_ids
        self._min_tokens: Final = min_tokens
        self._prompt_only: Final = prompt_only
        self._parser: Final = parser
        self._cut_call: Final = CutCall()
        self._counter: Final = counter

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the reasoning among `num_tokens`, tags included."""
        return 0 if self._counter is None else self._counter.tokens

    def feed(self, delta: Delta) -> OutputChunk:
        """The next chunk. Must not be called after a chunk with a finish reason."""
        if delta.cached_tokens is not None:
            self.cached_tokens = delta.cached_tokens
        self.accepted_predicted += delta.accepted_predicted
        self.rejected_predicted += delta.rejected_predicted
        if self._prompt_only:
            self.finished = True
            return OutputChunk(self.index, "", [], [], _LENGTH, outputs=delta.outputs)
        if self._finder is None and self._counter is None and not delta.finish:
            text = self._detokenizer.feed(delta.token_ids)
            chunk = OutputChunk(
                self.index, text, delta.token_ids, delta.logprobs, 0, None, None, delta.outputs
            )
        else:
            chunk = self._read(delta)
            chunk.outputs = delta.outputs
        if self._parser is not None:
            chunk.parts = self._parser.feed(chunk.text)
            if chunk.finish:
                chunk.parts += self._parser.finish()
            self._cut_call.feed(chunk.parts)
            chunk.cut_call = chunk.finish != 0 and self._cut_call.is_open
        self.num_tokens += len(chunk.token_ids)
        self.finished = chunk.finish != 0
        return chunk

    def abort(self) -> OutputChunk:
        """The last chunk of an aborted completion; text held back is lost."""
        self.finished = True
        return OutputChunk(self.index, "", [], [], _ABORT)

    def _read(self, delta: Delta) -> OutputChunk:
        """The chunk of a delta that may end the completion, or whose tokens are counted."""
        visible = delta.token_ids
        if delta.stop_token is not None and visible and visible[-1] == delta.stop_token:
            visible = visible[:-1]
        if self._finder is not None:
            return self._search(self._finder, delta, visible)
        text = self._text(visible)
        if delta.finish:
            text += self._detokenizer.flush()
        return self._chunk(delta, text)

    def _search(self, finder: StopFinder, delta: Delta, visible: list[int]) -> OutputChunk:
        """Token by token, to separate the tokens after a stop string from those before it."""
        text = ""
        for count, token_id in enumerate(visible, start=1):
            piece = self._text((token_id,))
            if self.num_tokens + count < self._min_tokens:
                text += piece  # min_tokens not reached
                continue
            text += finder.feed(piece)
            if finder.matched is not None:
                return OutputChunk(
                    self.index,
                    text,
                    delta.token_ids[:count],
                    delta.logprobs[:count],
                    _STOP,
                    stop=finder.matched,
                )
        if delta.finish:
            text += finder.feed(self._detokenizer.flush()) + finder.flush()
        return self._chunk(delta, text)

    def _text(self, token_ids: Sequence[int]) -> str:
        if self._counter is None or self._counter.is_over:
            return self._detokenizer.feed(token_ids)
        pieces = [self._detokenizer.feed((token_id,)) for token_id in token_ids]
        for piece in pieces:
            self._counter.feed(piece)
        return "".join(pieces)

    def _chunk(self, delta: Delta, text: str) -> OutputChunk:
        stop = delta.stop_token if delta.stop_token in self._stop_token_ids else None
        return OutputChunk(self.index, text, delta.token_ids, delta.logprobs, delta.finish, stop)
