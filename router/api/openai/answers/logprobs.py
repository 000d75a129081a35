"""Log-probabilities in the two formats of OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from router.api.generation.params.sampling_options import SamplingOptions
from router.api.generation.text.tokenizer import Tokenizer
from router.api.openai.requests import GenerationBody
from rpc.baton.v1 import sampling_pb2, worker_pb2

_LOWEST: Final = -9999.0
"""Replaces minus infinity, which JSON cannot represent."""


Entry: TypeAlias = sampling_pb2.TokenLogprobs
"""Log-probabilities at one position, of an answer or a prompt."""


@dataclass(frozen=True, slots=True)
class ScoresWanted:
    """Log-probabilities of the prompts of one request."""

    are_computed: bool
    has_field: bool
    """Whether answers have vLLM's `prompt_logprobs`."""

    @classmethod
    def of(cls, options: SamplingOptions, body: GenerationBody | None = None) -> ScoresWanted:
        """`body`: None if all scores are those of the field."""
        wanted = options.prompt_logprobs is not None
        return cls(wanted, wanted if body is None else body.prompt_logprobs is not None)

    def field(
        self, tokenizer: Tokenizer, token_ids: Sequence[int], outputs: Sequence[worker_pb2.Output]
    ) -> dict[str, Any]:
        """vLLM's, if it was asked for. O(tokens), some microseconds each."""
        if not self.has_field:
            return {}
        entries = zip(token_ids, prompt_entries(outputs), strict=True)
        return {
            "prompt_logprobs": [
                None if entry is None else _by_token(tokenizer, token, entry) for token, entry in entries
            ]
        }


def prompt_entries(outputs: Sequence[worker_pb2.Output]) -> list[Entry | None]:
    """One for each prompt token; None for the first, which nothing precedes. O(tokens)."""
    entries: list[Entry | None] = [None]
    for output in outputs:
        part = output.prompt_logprobs
        k, ids, values = part.num_top, list(part.top_ids), list(part.top_logprobs)
        entries += [
            Entry(
                logprob=logprob,
                rank=rank,
                top_ids=ids[i * k : (i + 1) * k],
                top_logprobs=values[i * k : (i + 1) * k],
            )
            for i, (logprob, rank) in enumerate(zip(part.logprobs, part.ranks, strict=True))
        ]
    return entries


def _by_token(tokenizer: Tokenizer, token_id: int, entry: Entry) -> dict[str, Any]:
    tops = zip(entry.top_ids, entry.top_logprobs, strict=True)
    tokens = {token_id: (entry.logprob, entry.rank)}
    tokens |= {other: (value, rank) for rank, (other, value) in enumerate(tops, 1) if other != token_id}
    return {
        str(other): {
            "logprob": max(value, _LOWEST),
            "rank": rank,
            "decoded_token": tokenizer.token_bytes(other).decode(errors="replace"),
        }
        for other, (value, rank) in tokens.items()
    }


def chat_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[Entry], *, by_id: bool = False
) -> dict[str, Any]:
    """The `logprobs` of a chat choice. `by_id`: a token's name is `token_id:` and its id, as in vLLM."""
    content = []
    for token_id, entry in zip(token_ids, logprobs, strict=True):
        alternatives = zip(entry.top_ids, entry.top_logprobs, strict=True)
        tops = [_chat_token(tokenizer, other, value, by_id) for other, value in alternatives]
        content.append(_chat_token(tokenizer, token_id, entry.logprob, by_id) | {"top_logprobs": tops})
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[Entry | None],
    text_offsets: Sequence[int],
    *,
    by_id: bool = False,
) -> dict[str, Any]:
    """The `logprobs` of a text completion; `text_offsets` are the offsets of the tokens in the text.

    An entry is None for the first token of a prompt. `by_id`: see `chat_logprobs`.
    """
    tokens = [_name(tokenizer, token_id, by_id) for token_id in token_ids]
    tops: list[dict[str, float] | None] = []
    for token, entry in zip(tokens, logprobs, strict=True):
        if entry is None:
            tops.append(None)
            continue
        top = {
            _name(tokenizer, other, by_id): max(value, _LOWEST)
            for other, value in zip(entry.top_ids, entry.top_logprobs, strict=True)
        }
        if top:
            top.setdefault(token, max(entry.logprob, _LOWEST))
        tops.append(top)
    return {
        "tokens": tokens,
        "token_logprobs": [None if entry is None else max(entry.logprob, _LOWEST) for entry in logprobs],
        "top_logprobs": tops,
        "text_offset": text_offsets,
    }


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float, by_id: bool) -> dict[str, Any]:
    value = tokenizer.token_bytes(token_id)
    return {
        "token": f"token_id:{token_id}" if by_id else value.decode(errors="replace"),
        "logprob": max(logprob, _LOWEST),
        "bytes": list(value),
    }


def _name(tokenizer: Tokenizer, token_id: int, by_id: bool) -> str:
    """A token as text; if it is only a part of a character, as its bytes, so that names are unique."""
    if by_id:
        return f"token_id:{token_id}"
    value = tokenizer.token_bytes(token_id)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in value)
