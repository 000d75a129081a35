"""Answers of POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from router.api.generation.completion import OutputChunk
from router.api.generation.output.parts import Content
from router.api.generation.run import Run
from router.api.generation.text.detokenizer import Detokenizer
from router.api.generation.text.tokenizer import Tokenizer
from router.api.openai.answers.logprobs import Entry, completion_logprobs, prompt_entries
from router.api.openai.answers.writer import AnswerWriter
from router.api.openai.requests import CompletionBody


class CompletionWriter(AnswerWriter):
    whole_object = event_object = "text_completion"
    before_text = b'"text":'
    after_text = b""
    prompts_in_choices = True

    def __init__(self, run: Run, body: CompletionBody, tokenizer: Tokenizer) -> None:
        super().__init__(run, body, tokenizer)
        self._echo: Final = _echo(run, tokenizer) if body.echo else None
        self._echoes_scores: Final = bool(body.echo) and self._scores.are_computed
        self._to_echo: Final = set(range(run.num_completions)) if self._echoes_scores else set()
        """Completions whose prompt's log-probabilities are to be sent with their first chunk."""
        self._text_offsets: Final[dict[int, _TextOffset]] = {}

    def event(self, chunk: OutputChunk) -> bytes:
        if chunk.index not in self._to_echo:
            return super().event(chunk)
        self._to_echo.remove(chunk.index)
        entries = prompt_entries(chunk.outputs)
        logprobs = self._logprobs(chunk.index, self._run.prompt(chunk.index), entries)
        choice = {"index": chunk.index, "text": "", "logprobs": logprobs, "finish_reason": None}
        return self._rare([choice], self._usage_so_far()) + super().event(chunk)

    def _opening(self, index: int) -> dict[str, Any] | None:
        return None if self._echo is None else {"text": self._echo[index]}

    def _news(self, chunk: OutputChunk) -> list[dict[str, Any]]:
        return [{"text": chunk.text}]

    def _content(self, whole: OutputChunk) -> dict[str, Any]:
        text = "".join([part.text for part in whole.all_parts if isinstance(part, Content)])
        return {"text": text if self._echo is None else self._echo[whole.index] + text}

    def _logprobs(
        self, index: int, token_ids: Sequence[int], logprobs: Sequence[Entry | None]
    ) -> dict[str, Any]:
        text_offset = self._text_offsets.setdefault(index, _TextOffset(self._tokenizer.detokenizer(())))
        offsets = [text_offset.advance(token_id) for token_id in token_ids]
        return completion_logprobs(self._tokenizer, token_ids, logprobs, offsets, by_id=self._named_by_id)

    def _whole_logprobs(self, whole: OutputChunk) -> dict[str, Any]:
        if not self._echoes_scores:
            return super()._whole_logprobs(whole)
        entries = [*prompt_entries(whole.outputs), *whole.logprobs]
        return self._logprobs(whole.index, [*self._run.prompt(whole.index), *whole.token_ids], entries)


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


def _echo(run: Run, tokenizer: Tokenizer) -> list[str]:
    """The prompt of every completion, as text."""
    prompts = [
        prompt if isinstance(prompt, str) else tokenizer.decode(run.prompt(i * run.request.n))
        for i, prompt in enumerate(run.request.prompts)
    ]
    return [prompt for prompt in prompts for _ in range(run.request.n)]
