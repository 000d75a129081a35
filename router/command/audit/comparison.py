"""Comparison of a receipt with an answer that was computed again. Pure."""

from __future__ import annotations

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
from router.command.audit.bodies import AnswerPart
from router.command.audit.outcome import NotComparable

_COMPARED: Final = ("config", "adapter", "numerics", "tokenizer", "template")
"""Fields that are equal where the same files are served in the same way."""
_OF_THE_END: Final = {"max_tokens", "min_tokens"}
"""Sampling parameters that are replaced by the number of tokens of the answer."""


RecordedAnswer: TypeAlias = Presented


@dataclass(frozen=True, slots=True)
class Computed:
    """A part of the answer as it was computed again, by what its receipt says."""

    receipt: Receipt
    tokens: Sequence[int]

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Computed:
        """From an answer to `request_of`. Raises ReceiptError, and NotComparable for a divided answer."""
        presented = Presented.read(next(receipts_in(answer)))
        assert presented.tokens is not None
        if len(presented.receipt.weights) > 1:
            raise NotComparable("the weights changed while the answer was computed again; try once more")
        return cls(presented.receipt, presented.tokens)

    def has_weights_of(self, part: AnswerPart) -> bool:
        (mine,) = self.receipt.weights
        return (mine.digest, mine.version) == (part.weights.digest, part.weights.version)


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
class Unchecked:
    """What was not computed again."""

    what: str
    """Tokens of the answer, or a field."""
    reason: str


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
    checked: int
    """Number of those that were computed again."""
    unchecked: Sequence[Unchecked] = ()

    @property
    def is_equal(self) -> bool:
        """As far as it was computed again."""
        return not self.altered and not self.fields and self.difference is None


def compare(
    presented: Presented,
    prompt: Sequence[int],
    parts: Sequence[AnswerPart],
    part: AnswerPart,
    computed: Computed,
    *,
    renamed: bool = False,
) -> Comparison:
    """`prompt`: of both. `parts`: of the answer; `part`: which of them was computed again. `renamed`: the
    model has another name there.

    Raises NotComparable.
    """
    old, new = presented.receipt, computed.receipt
    if part.first and old.adapter != new.adapter and _content(old) == _content(new):
        raise NotComparable("the weights changed after the tokens that activate the adapter")
    names = _COMPARED if renamed else ("model", *_COMPARED)
    pairs = {name: (getattr(old, name), getattr(new, name)) for name in names}
    fields: dict[str, tuple[Any, Any]] = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if not computed.has_weights_of(part):
        fields["weights"] = (old.weights, new.weights)
    fields |= _differing("media", dict(enumerate(old.media)), dict(enumerate(new.media)))
    fields |= _differing("sampling", _beginning(old.sampling, part), _beginning(new.sampling, part))
    difference = _difference(presented, prompt, part, computed)
    is_last = part is parts[-1]
    if difference is None and is_last:
        fields |= _ends(old, new.finish, searched=not (part.first and "stop" in old.sampling))
    unchecked = [*_others(parts, part)]
    if not is_last:
        unchecked.append(Unchecked("finish", "of a part that was not computed again"))
    elif part.first and "stop" in old.sampling and old.finish == "stop":
        unchecked.append(Unchecked("finish", "a stop string may begin in a part that is taken as prompt"))
    altered = presented.changes()
    if difference is None and presented.tokens is None and old.chain(prompt, computed.tokens) != old.pages:
        altered.append("pages")
    return Comparison(altered, fields, difference, old.output.count, part.end - part.first, unchecked)


def _differing(name: str, old: Mapping[Any, Any], new: Mapping[Any, Any]) -> dict[str, tuple[Any, Any]]:
    """Pairs of values that differ, by their paths in the receipt."""
    keys = sorted(key for key in {**old, **new} if old.get(key) != new.get(key))
    return {f"{name}.{key}": (old.get(key), new.get(key)) for key in keys}


def _content(receipt: Receipt) -> str:
    """Digest of the adapter, without the position from which it is used."""
    return receipt.adapter.partition("@")[0]


def _ends(receipt: Receipt, finish: str, *, searched: bool) -> dict[str, tuple[Any, Any]]:
    """Fields about the end of an answer of equal tokens that are not those of its computation.

    `finish`: computed, with as many tokens at most as the answer has. `searched`: for stop strings too.
    """
    count, facts = receipt.output.count, receipt.sampling
    most, least = facts.get("max_tokens", count), facts.get("min_tokens", 0)
    fields: dict[str, tuple[Any, Any]] = {}
    if count > most or (receipt.finish == "length" and count != most):
        fields["sampling.max_tokens"] = most, count
    if count < least:
        fields["sampling.min_tokens"] = least, count
    if receipt.finish != finish and (searched or finish == "stop"):
        goes_on = finish == "length" and count < most
        fields["finish"] = receipt.finish, "the answer goes on" if goes_on else finish
    return fields


def _others(parts: Sequence[AnswerPart], checked: AnswerPart) -> Iterator[Unchecked]:
    for part in parts:
        if part is not checked:
            weights = part.weights
            name = f"weights {weights.version!r}" if weights.version else "the weights of the start"
            same = (weights.digest, weights.version) == (checked.weights.digest, checked.weights.version)
            reason = "a later part of these weights was" if same else f"of {name}, which are not served"
            taken = "; taken as prompt" if part.first < checked.first else ""
            yield Unchecked(f"tokens {part.first} to {part.end - 1}", reason + taken)


def _difference(
    presented: Presented, prompt: Sequence[int], part: AnswerPart, computed: Computed
) -> Difference | None:
    if presented.tokens is None:
        return _first_page(presented.receipt, prompt, computed.tokens)
    return first_difference(presented.tokens[: part.end], computed.tokens, part.first)


def first_difference(recorded: Sequence[int], computed: Sequence[int], first: int = 0) -> Difference | None:
    """`computed`: from the recorded token `first` on."""
    before = recorded[first:]
    for position, (one, other) in enumerate(zip(before, computed, strict=False), first):
        if one != other:
            return Difference(position, True, one, other)
    shorter = min(len(before), len(computed))
    if len(before) == len(computed):
        return None
    return Difference(
        first + shorter, True, *(next(iter(each[shorter:]), None) for each in (before, computed))
    )


def _first_page(receipt: Receipt, prompt: Sequence[int], tokens: Sequence[int]) -> Difference | None:
    """Find the first page whose hash differs, unless the digests of the answers are equal."""
    if TokensDigest.of(tokens) == receipt.output:
        return None
    chain = receipt.chain(prompt, tokens)
    pairs = zip(receipt.pages, chain, strict=False)
    equal = next((page for page, (one, other) in enumerate(pairs) if one != other), None)
    page = min(len(receipt.pages), len(chain)) if equal is None else equal
    return Difference(max(0, page * PAGE_TOKENS - len(prompt)), False)


def _beginning(sampling: Mapping[str, Any], part: AnswerPart) -> dict[str, Any]:
    left_out = _OF_THE_END | ({"stop"} if part.first else set())
    return {name: value for name, value in sampling.items() if name not in left_out}


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
