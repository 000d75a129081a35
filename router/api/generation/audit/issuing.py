"""What is made of a finished answer: its receipt."""

from __future__ import annotations

from collections.abc import Sequence

from router.api.generation.audit.answer import Answer, Extras, OnAnswer
from router.api.generation.audit.receipts import Detail, Issuer, WeightsSpan, issued, receipt_of
from router.api.generation.off_loop import off_loop
from router.dispatch.weights.weight_updates import WeightUpdates
from router.errors import InvalidRequest

_TOKEN_BYTES = 8


def on_answer_of(detail: Detail | None, issuer: Issuer, weights: WeightUpdates | None) -> OnAnswer | None:
    """None without `detail`. Raises InvalidRequest if a receipt cannot be issued."""
    if detail is None:
        return None
    if weights is None or not weights.of_tag(weights.served.tag).digest:
        raise InvalidRequest(
            "receipt needs the digest of the weights, which this server does not compute; start it with"
            " --identify-weights.",
            param="receipt",
            code="unsupported_parameter",
        )

    async def issue(answer: Answer) -> Extras:
        spans = _spans(answer.weights, weights)
        size = _TOKEN_BYTES * (len(answer.work.prompt) + len(answer.tokens))
        receipt = await off_loop(size, lambda: receipt_of(answer, issuer, spans))
        return {"receipt": issued(receipt, answer, detail)}

    return issue


def _spans(weights: Sequence[tuple[int, str]], known: WeightUpdates) -> list[WeightsSpan]:
    served = [(first, known.of_tag(tag)) for first, tag in weights]
    return [WeightsSpan(first=first, digest=one.digest, version=one.version) for first, one in served]
