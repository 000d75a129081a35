"""What is made of a finished answer: its receipt, and a record of the request."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Final

from router.api.generation.audit.answer import Answer, Detail, Extras, Issuer, OnAnswer
from router.api.generation.audit.receipts import WeightsSpan, issued, receipt_of
from router.api.generation.audit.record_file import RecordFile
from router.api.generation.off_loop import off_loop
from router.api.media.marks import ImageSource
from router.dispatch.weights.weight_updates import WeightUpdates
from router.errors import InvalidRequest

_TOKEN_BYTES: Final = 8


def on_answer_of(
    detail: Detail | None,
    request: str,
    images: Callable[[], Sequence[ImageSource]],
    issuer: Issuer,
    weights: WeightUpdates | None,
    records: RecordFile | None,
) -> OnAnswer | None:
    """None if neither a receipt nor a record is wanted. `request`, `images`: its id, and the images of its
    prompt, for the record.

    Raises InvalidRequest if a receipt cannot be issued.
    """
    if detail is not None and (weights is None or not weights.of_tag(weights.served.tag).digest):
        raise InvalidRequest(
            "receipt needs the digest of the weights, which this server does not compute; start it with"
            " --identify-weights.",
            param="receipt",
            code="unsupported_parameter",
        )
    if detail is None and records is None:
        return None
    arrival, began = time.time(), time.monotonic()

    async def ended(answer: Answer) -> Extras:
        seconds, spans = time.monotonic() - began, _spans(answer.weights, weights)

        def made() -> Extras:
            receipt = receipt_of(answer, issuer, spans)
            if records is not None and not answer.work.HasField("read"):
                recorded = issued(receipt, answer, Detail.TOKENS)
                line = {"at": arrival, "request": request, "seconds": seconds, "answer": recorded}
                if answer.work.media:
                    line["images"] = [asdict(image) for image in images()]
                records.add(line)
            return {} if detail is None else {"receipt": issued(receipt, answer, detail)}

        return await off_loop(_TOKEN_BYTES * (len(answer.work.prompt) + len(answer.tokens)), made)

    return ended


def _spans(weights: Sequence[tuple[int, str]], known: WeightUpdates | None) -> list[WeightsSpan]:
    if known is None:
        return [WeightsSpan(first=0, digest="")]
    served = [(first, known.of_tag(tag)) for first, tag in weights]
    return [WeightsSpan(first=first, digest=one.digest, version=one.version) for first, one in served]
