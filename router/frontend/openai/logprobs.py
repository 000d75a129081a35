"""Log-probabilities in the two formats of OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from router.processing.text.tokenizer import Tokenizer
from rpc.baton.v1 import sampling_pb2

__all__ = ["chat_logprobs", "completion_logprobs"]

_LOWEST: Final = -9999.0
"""Replaces minus infinity, which JSON cannot represent."""


def chat_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[sampling_pb2.TokenLogprobs]
) -> dict[str, Any]:
    """The `logprobs` of a chat choice."""
    content = []
    for token_id, entry in zip(token_ids, logprobs, strict=True):
        alternatives = zip(entry.top_ids, entry.top_logprobs, strict=True)
        content.append(
            _chat_token(tokenizer, token_id, entry.logprob)
            | {"top_logprobs": [_chat_token(tokenizer, other, value) for other, value in alternatives]}
        )
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[sampling_pb2.TokenLogprobs],
    text_offsets: Sequence[int],
) -> dict[str, Any]:
    """The `logprobs` of a text completion; `text_offsets` are the offsets of the tokens in the text."""
    tokens = [_name(tokenizer, token_id) for token_id in token_ids]
    tops = []
    for token, entry in zip(tokens, logprobs, strict=True):
        top = {
            _name(tokenizer, other): max(value, _LOWEST)
            for other, value in zip(entry.top_ids, entry.top_logprobs, strict=True)
        }
        if top:
            top.setdefault(token, max(entry.logprob, _LOWEST))
        tops.append(top)
    return {
        "tokens": tokens,
        "token_logprobs": [max(entry.logprob, _LOWEST) for entry in logprobs],
        "top_logprobs": tops,
        "text_offset": text_offsets,
    }


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    value = tokenizer.token_bytes(token_id)
    return {
        "token": value.decode(errors="replace"),
        "logprob": max(logprob, _LOWEST),
        "bytes": list(value),
    }


def _name(tokenizer: Tokenizer, token_id: int) -> str:
    """A token as text; if it is only a part of a character, as its bytes, so that names are unique."""
    value = tokenizer.token_bytes(token_id)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in value)
