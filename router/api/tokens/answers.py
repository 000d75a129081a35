"""Types of the answers of the routes in tokens, as vLLM and SGLang have them."""

from __future__ import annotations

from typing import Literal, NotRequired, TypeAlias

from router.api.generation.audit.answer import Extras
from router.api.openai.answers.schemas import ChatLogprobs, Closed, ScoredPrompt, Usage

FinishName: TypeAlias = Literal["stop", "length", "abort"]


class TokensChoice(Closed, Extras):
    index: int
    token_ids: list[int]
    routed_experts: NotRequired[str | None]
    """With the end of an answer: base64 of an .npy file, [tokens - 1, layers, experts of a token]."""
    logprobs: ChatLogprobs | None
    """Each `token` is `token_id:` and the id."""
    finish_reason: FinishName | None
    stop_reason: str | int | None


class ListedChoice(TokensChoice):
    """SkyRL's."""

    routed_experts: NotRequired[list[list[list[int]]] | None]  # type: ignore[misc]
    """With the end of an answer: [tokens - 1, layers, experts of a token]."""


class ListedTokens(ScoredPrompt):
    """SkyRL's."""

    request_id: str
    choices: list[ListedChoice]
    usage: NotRequired[Usage]


class GeneratedTokens(ScoredPrompt):
    """vLLM's."""

    request_id: str
    choices: list[TokensChoice]
    usage: NotRequired[Usage]


class Finished(Closed):
    """SGLang's."""

    type: FinishName
    matched: NotRequired[str | int | None]
    """Stop string or token of `stop`; null after the end of sequence."""
    length: NotRequired[int]
    message: NotRequired[str]


Scored: TypeAlias = tuple[float | None, int, str | None]
"""Log-probability, token id, and text with `return_text_in_logprobs`."""


class MetaInfo(Closed, Extras):
    id: str
    finish_reason: Finished | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    weight_version: str
    routed_experts: NotRequired[str | None]
    """With the end of an answer: base64 of int32 numbers [tokens - 1, layers, experts of a token]."""
    input_token_logprobs: NotRequired[list[Scored]]
    output_token_logprobs: NotRequired[list[Scored]]
    input_top_logprobs: NotRequired[list[list[Scored] | None]]
    output_top_logprobs: NotRequired[list[list[Scored] | None]]
    output_token_ids_logprobs: NotRequired[list[list[Scored] | None]]


class Generated(Closed):
    """SGLang's; of streams, each event has the whole answer so far."""

    text: str
    output_ids: list[int]
    meta_info: MetaInfo
