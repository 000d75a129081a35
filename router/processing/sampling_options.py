"""What a client may ask of sampling: the defaults, and the bounds of every number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from router.errors import InvalidRequest
from router.request_limits import LOGPROBS_LIMIT
from rpc.baton.v1 import sampling_pb2

__all__ = [
    "BOUNDS",
    "MAX_STOP_CHARACTERS",
    "MAX_STOP_STRINGS",
    "MAX_STOP_TOKEN_IDS",
    "SamplingOptions",
    "derive_seed",
]

MAX_STOP_STRINGS: Final = 16
MAX_STOP_CHARACTERS: Final = 1024
MAX_STOP_TOKEN_IDS: Final = 256
_UINT64: Final = (1 << 64) - 1

BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "min_tokens": (0, (1 << 31) - 1),
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (-1, (1 << 31) - 1),
    "min_p": (0.0, 1.0),
    "seed": (-(1 << 63), _UINT64),
    "repetition_penalty": (0.01, 10.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "logprobs": (0, LOGPROBS_LIMIT),
}
_COLDEST: Final = 1e-4
"""Below this temperature the most likely token is drawn in effect always, and float32 would overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """OpenAI's parameters and the customary extensions, as a client gave them. The defaults are OpenAI's."""

    max_tokens: int | None = None
    """None: as many as the context holds."""
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 and -1 turn it off."""
    min_p: float = 0.0
    seed: int | None = None
    """None: drawn for every prompt."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def check(self, vocab_size: int) -> None:
        """Raise InvalidRequest if a value is out of bounds, whatever the prompt is."""
        for name, (low, high) in BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # NaN is in no bounds
                raise InvalidRequest(f"{name} must be from {low:g} to {high:g}, not {value}.", param=name)
        if self.max_tokens is not None:
            if self.max_tokens < 1:
                raise InvalidRequest(
                    f"max_tokens must be at least 1, not {self.max_tokens}.", param="max_tokens"
                )
            if self.min_tokens > self.max_tokens:
                raise InvalidRequest(
                    f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}.",
                    param="min_tokens",
                )
        self._check_stops(vocab_size)

    def _check_stops(self, vocab_size: int) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(
                f"stop has {len(self.stop)} strings; at most {MAX_STOP_STRINGS} may be.", param="stop"
            )
        for text in self.stop:
            if not 1 <= len(text) <= MAX_STOP_CHARACTERS:
                raise InvalidRequest(
                    f"A stop string must have 1 to {MAX_STOP_CHARACTERS} characters, not {len(text)}.",
                    param="stop",
                )
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequest(
                f"stop_token_ids has {len(self.stop_token_ids)} ids; at most {MAX_STOP_TOKEN_IDS} may be.",
                param="stop_token_ids",
            )
        for token_id in self.stop_token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequest(
                    f"stop_token_ids contains {token_id}; this model's token ids are 0 to {vocab_size - 1}.",
                    param="stop_token_ids",
                )

    def resolve(self, *, room: int, seed: int, vocab_size: int) -> sampling_pb2.SamplingParams:
        """What the workers get; these options must have passed `check`.

        `room` is the number of tokens that the context holds after the prompt, at least 1. Raises
        InvalidRequest when more are asked for.
        """
        for name, value in (("max_tokens", self.max_tokens), ("min_tokens", self.min_tokens)):
            if value is not None and value > room:
                raise InvalidRequest(
                    f"{name} is {value}, but after this prompt the context holds only {room} more tokens.",
                    param=name,
                    code="context_length_exceeded",
                )
        temperature, top_p, top_k = self.temperature, self.top_p, self.top_k
        if top_p == 0.0:  # OpenAI takes it for "the most likely token only"
            top_p, top_k = 1.0, 1
        return sampling_pb2.SamplingParams(
            max_tokens=room if self.max_tokens is None else self.max_tokens,
            min_tokens=self.min_tokens,
            temperature=0.0 if temperature < _COLDEST else temperature,
            top_p=top_p,
            top_k=0 if top_k >= vocab_size else max(top_k, 0),
            min_p=self.min_p,
            seed=seed,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logprobs=self.logprobs,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
        )


def derive_seed(seed: int, index: int) -> int:
    """The seed of the index-th completion of a prompt; that of the first is `seed` itself.

    SplitMix64's finalizer: neighbouring indices give unrelated seeds.
    """
    if index == 0:
        return seed & _UINT64
    mixed = (seed + index * 0x9E3779B97F4A7C15) & _UINT64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _UINT64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _UINT64
    return mixed ^ (mixed >> 31)
