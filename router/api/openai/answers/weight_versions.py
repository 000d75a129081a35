"""Which weights have computed which tokens of an answer, as vLLM reports it."""

from __future__ import annotations

from collections.abc import Iterable

from router.api.openai.answers.schemas import WeightVersion
from rpc.baton.v1 import worker_pb2


def weight_versions(outputs: Iterable[worker_pb2.Output], num_tokens: int) -> list[WeightVersion]:
    """Spans that cover the answer in order, from `outputs` of its chunks."""
    begins = [output.weights_begin for output in outputs if output.HasField("weights_begin")]
    spans: list[WeightVersion] = []
    ends = [*(later.position for later in begins[1:]), num_tokens]
    for begin, later in zip(begins, ends, strict=False):
        end = min(later, num_tokens)
        if spans and spans[-1]["version"] == begin.version:
            spans[-1]["end"] = end
        elif begin.position < end:
            spans.append({"version": begin.version, "start": begin.position, "end": end})
    return spans
