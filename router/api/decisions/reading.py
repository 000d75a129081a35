"""Reads prompts: sends them to the workers together, and collects the log-probabilities of their labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from router.api.generation.completion import OutputChunk
from router.api.generation.generation import Generation
from router.api.generation.generation_request import GenerationRequest
from router.api.generation.params.sampling_options import SamplingOptions
from router.api.generation.run import TokenUsage
from router.errors import Internal
from rpc.as_json import as_json
from rpc.baton.v1 import worker_pb2


@dataclass(frozen=True, slots=True)
class Reading:
    """Log-probabilities of labels after each of several prompts."""

    rows: tuple[Mapping[int, float], ...]
    """For each prompt: by token id."""
    usage: TokenUsage
    timings: list[dict[str, Any]]
    """Timings of each prompt, if they were asked for."""


def softmax(logprobs: Sequence[float]) -> tuple[tuple[float, ...], float]:
    """Probabilities of these tokens among themselves, and their mass among all tokens."""
    most = max(logprobs)
    weights = [math.exp(logprob - most) for logprob in logprobs]
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights), min(math.exp(most) * total, 1.0)


async def read(
    model: Generation,
    request_id: str,
    prompts: Sequence[Sequence[int]],
    labels: Sequence[int],
    work: worker_pb2.Work,
    *,
    timings: bool = False,
) -> Reading:
    """Log-probabilities of `labels` as the next token after each prompt. `work`: see `envelope`.

    Raises RouterError. Prompts go to the worker that has what they share. Where layers have recurrent states,
    that is computed first: prompts that start together cannot reuse each other's states.
    """
    own = worker_pb2.Work()
    own.CopyFrom(work)
    own.read.label_ids.extend(labels)
    request = GenerationRequest(
        id=request_id, prompts=prompts, options=SamplingOptions(), work=own, timings=timings
    )
    if model.model.has_states and len(prompts) > 1 and (shared := common_prefix(prompts)):
        ahead = worker_pb2.Work()
        ahead.CopyFrom(work)
        ahead.read.SetInParent()
        await _serve(model, replace(request, prompts=[shared], work=ahead, timings=False))
    return await _serve(model, request)


async def _serve(model: Generation, request: GenerationRequest) -> Reading:
    run = await model.start(request)
    chunks: dict[int, OutputChunk] = {}
    await run.serve(lambda chunk: chunks.__setitem__(chunk.index, chunk))
    rows = tuple(_row(chunks[index]) for index in range(run.num_completions))
    last = [chunks[index].timings for index in range(run.num_completions)]
    return Reading(rows, run.usage, [as_json(each) for each in last if each is not None])


def _row(chunk: OutputChunk) -> Mapping[int, float]:
    for output in chunk.outputs:
        if output.HasField("label_logprobs"):
            found = output.label_logprobs
            return dict(zip(found.ids, found.logprobs, strict=True))
    raise Internal("A read ended without its log-probabilities.")


def common_prefix(prompts: Sequence[Sequence[int]]) -> Sequence[int]:
    """Tokens with which all prompts begin, but for the last token of the shortest."""
    first, end = prompts[0], min(map(len, prompts)) - 1
    for other in prompts[1:]:
        end = next((at for at in range(end) if first[at] != other[at]), end)
    return first[:end]
