"""The differences between the answers of OpenAI's two endpoints: names, nesting, format of logprobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

from router.api.generation.text.detokenizer import Detokenizer
from router.api.generation.text.tokenizer import Tokenizer
from router.api.openai.answers.logprobs import Entry, chat_logprobs, completion_logprobs
from rpc.baton.v1 import sampling_pb2

FINISH_REASONS: Final[Mapping[int, str | None]] = {
    sampling_pb2.FINISH_REASON_UNSPECIFIED: None,
    sampling_pb2.FINISH_REASON_STOP: "stop",
    sampling_pb2.FINISH_REASON_LENGTH: "length",
    sampling_pb2.FINISH_REASON_ABORT: "abort",
}


class Serializer(Protocol):
    """Serializes one answer."""

    whole_object: ClassVar[str]
    """The `object` of a whole answer."""
    event_object: ClassVar[str]
    """The `object` of a streamed event."""
    before_text: ClassVar[bytes]
    """JSON between a streamed choice's index and its text."""
    after_text: ClassVar[bytes]
    prompts_in_choices: ClassVar[bool]
    """Whether vLLM's `prompt_logprobs` is a field of each choice, or of the answer."""

    @property
    def echoes(self) -> bool:
        """Whether answers begin with their prompts."""
        ...

    def opening(self, index: int) -> dict[str, Any] | None:
        """The content of a streamed choice before its first token, or None."""
        ...

    def content(self, index: int, text: str) -> dict[str, Any]:
        """The content of a whole choice."""
        ...

    def logprobs(
        self, index: int, token_ids: Sequence[int], logprobs: Sequence[Entry | None]
    ) -> dict[str, Any]:
        """The logprobs of tokens that follow those of previous calls; None: of a prompt's first token."""
        ...


class CompletionSerializer:
    """POST /v1/completions."""

    whole_object: ClassVar[str] = "text_completion"
    event_object: ClassVar[str] = "text_completion"
    before_text: ClassVar[bytes] = b'"text":'
    after_text: ClassVar[bytes] = b""
    prompts_in_choices: ClassVar[bool] = True

    def __init__(self, tokenizer: Tokenizer, echo: Sequence[str] = ()) -> None:
        """`echo`: for every choice, the prompt that its text begins with; empty without echo."""
        self._tokenizer: Final = tokenizer
        self._echo: Final = echo
        self._text_offsets: Final[dict[int, _TextOffset]] = {}

    @property
    def echoes(self) -> bool:
        return bool(self._echo)

    def opening(self, index: int) -> dict[str, Any] | None:
        return {"text": self._echo[index]} if self._echo else None

    def content(self, index: int, text: str) -> dict[str, Any]:
        return {"text": self._echo[index] + text if self._echo else text}

    def logprobs(
        self, index: int, token_ids: Sequence[int], logprobs: Sequence[Entry | None]
    ) -> dict[str, Any]:
        text_offset = self._text_offsets.setdefault(index, _TextOffset(self._tokenizer.detokenizer(())))
        offsets = [text_offset.advance(token_id) for token_id in token_ids]
        return completion_logprobs(self._tokenizer, token_ids, logprobs, offsets)


class _TextOffset:
    """Offsets of tokens in a text, in characters."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer: Final = detokenizer
        self._offset = 0

    def advance(self, token_id: int) -> int:
        """The offset of the next token. Tokens that share a character have the offset of that character."""
        begin = self._offset
        self._offset += len(self._detokenizer.feed((token_id,)))
        return begin


class ChatSerializer:
    """POST /v1/chat/completions."""

    whole_object: ClassVar[str] = "chat.completion"
    event_object: ClassVar[str] = "chat.completion.chunk"
    before_text: ClassVar[bytes] = b'"delta":{"content":'
    after_text: ClassVar[bytes] = b"}"
    prompts_in_choices: ClassVar[bool] = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer: Final = tokenizer

    @property
    def echoes(self) -> bool:
        return False

    def opening(self, index: int) -> dict[str, Any] | None:
        return {"delta": {"role": "assistant", "content": ""}}

    def content(self, index: int, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def logprobs(
        self, index: int, token_ids: Sequence[int], logprobs: Sequence[Entry | None]
    ) -> dict[str, Any]:
        return chat_logprobs(self._tokenizer, token_ids, [entry for entry in logprobs if entry is not None])
