"""Requests that compute recorded answers again, or a part of one. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from router.api.generation.audit.receipts import Presented, Receipt, TokensDigest, WeightsSpan
from router.api.generation.params.sampling_options import CHANGE_NO_TOKEN
from router.api.media.marks import ImageSource
from router.command.audit.outcome import NotComparable
from rpc.baton.v1 import sampling_pb2

_PARAMETERS: Final = ({*sampling_pb2.SamplingParams.DESCRIPTOR.fields_by_name, "stop"}) - CHANGE_NO_TOKEN
_OF_ALL_BEFORE: Final = {"presence_penalty": 0, "frequency_penalty": 0, "grammar": None}
"""Sampling parameters that depend on all tokens of the answer so far, with the values that do not."""


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """Tokens [first, end) of an answer, which the same weights have computed."""

    first: int
    end: int
    weights: WeightsSpan


def parts_of(receipt: Receipt) -> Sequence[AnswerPart]:
    """In order, without empty ones. Raises NotComparable for an answer without tokens."""
    count = receipt.output.count
    firsts = [*(span.first for span in receipt.weights), count]
    bounds = zip(pairwise(firsts), receipt.weights, strict=True)
    parts = [
        AnswerPart(first, min(end, count), span) for (first, end), span in bounds if first < min(end, count)
    ]
    if not parts:
        raise NotComparable("the answer has no tokens")
    return parts


def prompt_of(presented: Presented, given: Sequence[int] | None) -> Sequence[int]:
    """Raises NotComparable for a receipt without tokens, unless they are given."""
    prompt = presented.prompt if given is None else given
    if prompt is None:
        raise NotComparable("the receipt has no tokens; give those of the prompt with --prompt-ids")
    return prompt


def request_of(
    presented: Presented, prompt: Sequence[int], part: AnswerPart, images: Sequence[ImageSource] = ()
) -> dict[str, Any]:
    """The body of /v1/completions that computes a part of the answer again; earlier parts are in its prompt.

    `images`: of the prompt. Raises NotComparable.
    """
    receipt = presented.receipt
    if len(images) != len(receipt.media):
        raise NotComparable(_which_images(len(receipt.media), len(images)))
    if TokensDigest.of(prompt) != receipt.prompt:
        raise NotComparable("the prompt is not that of the receipt")
    before: Sequence[int] = ()
    if part.first:
        _check_divisible(presented, part)
        before = (presented.tokens or ())[: part.first]
    try:
        sampling = _body_fields(receipt.sampling, part)
    except (KeyError, TypeError, ValueError) as error:
        raise NotComparable(f"its sampling parameters are none: {error!r}") from None
    placed = {"images": [_image(image) for image in images]} if images else {}
    return sampling | placed | {"model": receipt.model, "prompt": [*prompt, *before]}


def _which_images(expected: int, given: int) -> str:
    if not given:
        return (
            f"media: the prompt has {expected} images, of which the receipt has only digests;"
            " give the body of its request with --request"
        )
    return f"media: the request has {given} images, the prompt of the receipt {expected}"


def _check_divisible(presented: Presented, part: AnswerPart) -> None:
    """Raise NotComparable if tokens of the part depend on more of the earlier ones than a prompt says."""
    facts = presented.receipt.sampling
    if presented.tokens is None:
        raise NotComparable(f"the weights changed at token {part.first}, and the receipt has no tokens")
    for name, without in _OF_ALL_BEFORE.items():
        if facts.get(name, without) != without:
            raise NotComparable(
                f"the weights changed at token {part.first}, and {name} depends on the tokens before it"
            )


def replay_of(presented: Presented, images: Sequence[ImageSource]) -> tuple[dict[str, Any], str]:
    """The body that computes a recorded answer again, and the digest of its adapter. Raises NotComparable.

    Requests that shared cached prefixes share them again.
    """
    if presented.tokens is None:
        raise NotComparable("the tokens of the answer were not recorded")
    first, *others = parts_of(presented.receipt)
    if others:
        changes = ", ".join(str(part.first) for part in others)
        raise NotComparable(f"the weights changed during the answer, at token {changes}")
    body = request_of(presented, prompt_of(presented, None), first, images) | {"return_token_ids": True}
    if namespace := presented.receipt.namespace:
        body["cache_salt"] = namespace
    return body, presented.receipt.adapter


def _body_fields(facts: Mapping[str, Any], part: AnswerPart) -> dict[str, Any]:
    """Sampling parameters of a part of an answer. Raises what wrong values raise."""
    count = part.end - part.first
    if unknown := facts.keys() - _PARAMETERS:
        raise KeyError(*sorted(unknown))
    fields = dict(facts)
    if part.first:  # a stop string may begin before it
        fields.pop("stop", None)
    least = min(max(fields.get("min_tokens", 0) - part.first, 0), count)
    if not isinstance(fields.get("max_tokens", 0), int):
        raise TypeError("max_tokens")
    fields |= {"max_tokens": count, "min_tokens": least}
    if "seed" in fields:
        fields["seed"] = int(fields["seed"])
    if (grammar := fields.pop("grammar", None)) is not None:
        kind, text = _GRAMMARS[grammar["kind"]], grammar["text"]
        del fields["min_tokens"]  # they exclude each other
        fields["structured_outputs"] = {kind: json.loads(text) if kind == "choice" else text}
    return fields


_GRAMMARS: Final = {"json_schema": "json", "regex": "regex", "choice": "choice", "ebnf": "grammar"}
"""Field of `structured_outputs` for each kind of grammar."""


def _image(image: ImageSource) -> dict[str, str]:
    if not image.url:
        raise NotComparable(f"image {image.uuid!r} of the request has only a name; give it with its URL")
    return {"url": image.url, "detail": image.detail}
