"""Comparison of a receipt with an answer that was computed again. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from router.api.generation.audit.receipts import (
    PAGE_TOKENS,
    Presented,
    Receipt,
    ReceiptError,
    TokensDigest,
)

_COMPARED: Final = ("weights", "adapter", "media", "numerics", "tokenizer", "template")
"""Fields that are equal where the same files are served in the same way."""
_OF_THE_END: Final = {"max_tokens", "min_tokens", "stop"}
"""Sampling parameters that are replaced by the number of tokens of the answer."""


RecordedAnswer: TypeAlias = Presented


class NotComparable(Exception):
    """The answer cannot be computed again, or not there; the message says why."""


@dataclass(frozen=True, slots=True)
class Computed:
    """The answer as it was computed again, by what its receipt says."""

    receipt: Receipt
    tokens: Sequence[int]

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Computed:
        """From an answer to `request_of`. Raises ReceiptError."""
        presented = Presented.read(next(receipts_in(answer)))
        assert presented.tokens is not None
        return cls(presented.receipt, presented.tokens)


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two answers differ first."""

    position: int
    """Position of the token in the answer; of its page if only the digests of one answer are known."""
    known: bool
    """Whether it is the position of the token."""
    recorded: int | None = None
    """None: the answer ends here, or its tokens are not known."""
    computed: int | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    altered: Sequence[str]
    """Parts of the receipt that do not have its digests: it was changed after it was issued."""
    fields: Mapping[str, tuple[Any, Any]]
    """Fields that differ: in the receipt, and computed again."""
    difference: Difference | None
    """None: the tokens are equal."""
    tokens: int
    """Tokens of the answer."""

    @property
    def is_equal(self) -> bool:
        return not self.altered and not self.fields and self.difference is None


def prompt_of(presented: Presented, given: Sequence[int] | None) -> Sequence[int]:
    """Raises NotComparable for a receipt without tokens, unless they are given."""
    prompt = presented.prompt if given is None else given
    if prompt is None:
        raise NotComparable("the receipt has no tokens; give those of the prompt with --prompt-ids")
    return prompt


def request_of(presented: Presented, prompt: Sequence[int]) -> dict[str, Any]:
    """The body of /v1/completions that computes the answer again: its tokens, without a search for its end.

    Raises NotComparable.
    """
    receipt, count = presented.receipt, presented.receipt.output.count
    if receipt.media:
        raise NotComparable("the prompt has images, which a receipt does not contain")
    if len(receipt.weights) > 1:
        changes = ", ".join(str(span.first) for span in receipt.weights[1:])
        raise NotComparable(f"the weights changed during the answer, at token {changes}")
    if not count:
        raise NotComparable("the answer has no tokens")
    if TokensDigest.of(prompt) != receipt.prompt:
        raise NotComparable("the prompt is not that of the receipt")
    try:
        sampling = _body_fields(receipt.sampling, count)
    except (KeyError, TypeError, ValueError) as error:
        raise NotComparable(f"its sampling parameters are none: {error!r}") from None
    return sampling | {"model": receipt.model, "prompt": list(prompt)}


def replay_of(presented: Presented) -> tuple[dict[str, Any], str]:
    """The body that computes a recorded answer again, and the digest of its adapter. Raises NotComparable.

    Requests that shared cached prefixes share them again.
    """
    if presented.tokens is None:
        raise NotComparable("the tokens of the answer were not recorded")
    body = request_of(presented, prompt_of(presented, None)) | {"return_token_ids": True}
    if namespace := presented.receipt.namespace:
        body["cache_salt"] = namespace
    return body, presented.receipt.adapter


def _body_fields(facts: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Sampling parameters of an answer of `count` tokens. Raises what wrong values raise."""
    fields = {name: value for name, value in facts.items() if name != "stop"}
    fields |= {"max_tokens": count, "min_tokens": min(fields.get("min_tokens", 0), count)}
    if "seed" in fields:
        fields["seed"] = int(fields["seed"])
    if (grammar := fields.pop("grammar", None)) is not None:
        kind, text = _GRAMMARS[grammar["kind"]], grammar["text"]
        del fields["min_tokens"]  # they exclude each other
        fields["structured_outputs"] = {kind: json.loads(text) if kind == "choice" else text}
    return fields


_GRAMMARS: Final = {"json_schema": "json", "regex": "regex", "choice": "choice", "ebnf": "grammar"}
"""Field of `structured_outputs` for each kind of grammar."""


def compare(presented: Presented, prompt: Sequence[int], computed: Computed) -> Comparison:
    """`prompt`: of both."""
    old, new = presented.receipt, computed.receipt
    fields = {
        name: (getattr(old, name), getattr(new, name))
        for name in _COMPARED
        if getattr(old, name) != getattr(new, name)
    }
    sampled, again = _beginning(old.sampling), _beginning(new.sampling)
    if sampled != again:
        names = [name for name in sampled | again if sampled.get(name) != again.get(name)]
        fields |= {f"sampling.{name}": (sampled.get(name), again.get(name)) for name in sorted(names)}
    difference = (
        _first_page(old, prompt, computed.tokens)
        if presented.tokens is None
        else first_difference(presented.tokens, computed.tokens)
    )
    return Comparison(presented.changes(), fields, difference, old.output.count)


def first_difference(recorded: Sequence[int], computed: Sequence[int]) -> Difference | None:
    for position, (one, other) in enumerate(zip(recorded, computed, strict=False)):
        if one != other:
            return Difference(position, True, one, other)
    shorter = min(len(recorded), len(computed))
    if len(recorded) == len(computed):
        return None
    return Difference(shorter, True, *(next(iter(each[shorter:]), None) for each in (recorded, computed)))


def _first_page(receipt: Receipt, prompt: Sequence[int], tokens: Sequence[int]) -> Difference | None:
    """Find the first page whose hash differs, unless the digests of the answers are equal."""
    if TokensDigest.of(tokens) == receipt.output:
        return None
    chain = receipt.chain(prompt, tokens)
    pairs = zip(receipt.pages, chain, strict=False)
    equal = next((page for page, (one, other) in enumerate(pairs) if one != other), None)
    page = min(len(receipt.pages), len(chain)) if equal is None else equal
    return Difference(max(0, page * PAGE_TOKENS - len(prompt)), False)


def _beginning(sampling: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sampling.items() if name not in _OF_THE_END}


def presented_in(record: Any) -> Presented:
    """Raises NotComparable."""
    try:
        return Presented.read(record)
    except ReceiptError as error:
        raise NotComparable(str(error)) from None


def receipts_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """All receipts within answers, events or records, in order; or the value itself if it is one."""
    match value:
        case {"pages": _, "weights": _, "digest": _}:
            yield value
        case dict():
            for part in value.values():
                yield from receipts_in(part)
        case list():
            for part in value:
                yield from receipts_in(part)
