"""Sampling parameters and stop conditions of a request, with their bounds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final, TypeAlias

from pydantic import Field
from typing_extensions import Doc

from engine.grammar.grammar import Grammar

MAX_LOGPROBS: Final = 20
"""Largest number of top log-probabilities per position."""
MAX_LOGPROB_IDS: Final = 128
"""Largest number of tokens whose log-probabilities a request names, as in vLLM."""
MAX_LOGIT_BIASES: Final = 1024


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


MinTokens: TypeAlias = Annotated[
    int, Field(ge=0), Doc("No end-of-sequence or stop token before this many tokens.")
]
Temperature: TypeAlias = Annotated[
    float,
    Field(ge=0.0, le=2.0),
    Doc("The model's default, or 1, unless given; 0: the most likely token."),
]
TopP: TypeAlias = Annotated[float, Field(ge=0.0, le=1.0), Doc("0: the most likely token.")]
TopK: TypeAlias = Annotated[int, Field(ge=-1, le=(1 << 31) - 1), Doc("0 and -1: off.")]
MinP: TypeAlias = Annotated[
    float, Field(ge=0.0, le=1.0), Doc("Smallest probability, relative to that of the most likely token.")
]
RepetitionPenalty: TypeAlias = Annotated[float, Field(ge=0.01, le=10.0), Doc("1: off.")]
PresencePenalty: TypeAlias = Annotated[
    float,
    Field(ge=-2.0, le=2.0),
    Doc("Subtracted from the logits of tokens that occurred in the answer."),
]
FrequencyPenalty: TypeAlias = Annotated[
    float, Field(ge=-2.0, le=2.0), Doc("The same, times the number of occurrences.")
]
IgnoreEos: TypeAlias = Annotated[bool, Doc("Continue after the end of sequence.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParams:
    """Parameters that have one meaning from a client's request to the engine.

    A client's request (`SamplingOptions`; with vLLM's defaults `baton.SamplingParams`) and the engine add a
    few. The protobuf message has fields of the same names, and so have bodies of OpenAI's API, with the
    descriptions of these types. The router checks the bounds.
    """

    min_tokens: MinTokens = 0
    """End-of-sequence and stop tokens are not sampled before this many."""
    temperature: Temperature = 0.0
    """0: greedy."""
    top_p: TopP = 1.0
    top_k: TopK = 0
    """0 and -1 turn it off; workers never get -1."""
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    presence_penalty: PresencePenalty = 0.0
    frequency_penalty: FrequencyPenalty = 0.0
    logprobs: int | None = None
    """Alternatives reported for each token; 0: the token's own alone; None: none."""
    prompt_logprobs: int | None = None
    """The same for each token of the prompt."""
    logprob_token_ids: tuple[int, ...] = ()
    """Tokens reported in place of the most likely ones, with `logprobs` 0."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: IgnoreEos = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(SharedParams):
    """Sampling parameters of one request, as workers get them.

    Randomness is a pure function of `seed` and the position of the sampled token, so a request that moves to
    another worker (handoff, preemption, retry) samples the same tokens there. There is no generator state.
    """

    max_tokens: int
    """0: none is sampled, and the request ends when the KV of its prompt is computed."""
    seed: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Added to the logits of tokens, each named once, before penalties; at most MAX_LOGIT_BIASES."""
    grammar: Grammar | None = None
    """Constrains the output, and where it may end: not together with `min_tokens` or `ignore_eos`."""

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken; of equally likely ones, the first."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of the prompt's tokens are reported."""
        return self.prompt_logprobs is not None

    @property
    def prompt_alternatives(self) -> int:
        """Alternatives that are reported for each of them."""
        return self.prompt_logprobs or 0

    @property
    def of_one_token(self) -> SamplingParams:
        """What decides about a single token: penalties and grammars follow all tokens so far."""
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            ignore_eos=self.ignore_eos,
            logit_bias=self.logit_bias,
        )

    @property
    def argmax_only(self) -> bool:
        """Whether an argmax over unmodified logits is enough."""
        return (
            self.is_greedy
            and self.logprobs is None
            and not self.min_tokens
            and not self.logit_bias
            and not self.has_penalties
            and self.grammar is None
        )

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def truncates(self) -> bool:
        """Whether the distribution is truncated by top-k, top-p or min-p."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one output position, before temperature."""

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of consecutive prompt tokens, as columns: a prompt may have 100,000 of them."""

    position: int
    """Position of the first of these tokens in the prompt; at least 1, since nothing precedes token 0."""
    logprobs: list[float]
    ranks: list[int]
    """From 1."""
    num_top: int
    top_ids: list[int]
    """`num_top` for each token, most likely first."""
    top_logprobs: list[float]

    def __len__(self) -> int:
        return len(self.logprobs)

    def without_alternatives(self) -> PromptLogprobs:
        return PromptLogprobs(self.position, self.logprobs, self.ranks, 0, [], [])

    def part(self, first: int, end: int) -> PromptLogprobs:
        """Select tokens [first, end) of these."""
        tokens, tops = slice(first, end), slice(first * self.num_top, end * self.num_top)
        return PromptLogprobs(
            self.position + first,
            self.logprobs[tokens],
            self.ranks[tokens],
            self.num_top,
            self.top_ids[tops],
            self.top_logprobs[tops],
        )
