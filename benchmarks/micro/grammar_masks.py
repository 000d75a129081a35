"""Cost of grammars per step on a CPU: filling masks, and sampling with them.

The model is not run. Every row writes JSON of one schema, with random logits, and restarts when it ends.
Medians and 99th percentiles over steps, in ms.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import torch

from benchmarks.lib.command import command
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.model_folder import model_folder
from engine.core.plan import Chunk
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.grammar import Grammar, GrammarKind
from engine.model_config.model_spec import ModelSpec
from engine.sampling.sampler import Sampler
from engine.sampling.token_masks import constrained_rows, masks_of

SCHEMA: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 5},
        "kind": {"enum": ["a", "b", "c"]},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["street", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags", "kind", "address"],
    "additionalProperties": False,
}
_LOGITS: Final = 3
"""Sets of logits, so that a step does not find the last one's in a cache."""
_WARM_UP: Final = 100
"""Steps: the lexer's states are built when they are first reached."""
_LONGEST: Final = 200
"""Tokens of a row's output."""


@dataclass
class _Times:
    fill: list[float] = field(default_factory=list)
    masked: list[float] = field(default_factory=list)
    greedy: list[float] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> None:
    parser = command("micro.grammar_masks", __doc__)
    parser.add_argument("--model", default="smollm2", help="its vocabulary is used")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    folder = model_folder(options.model)
    spec = ModelSpec.from_folder(folder)
    compiler = GrammarCompiler(folder, spec)
    began = time.perf_counter()
    compiler.load()
    loaded = time.perf_counter()
    compiler.matcher(_GRAMMAR)
    compiled = time.perf_counter()
    print(f"{describe_machine()}; vocabulary {spec.vocab_size}")
    print(
        f"vocabulary read in {loaded - began:.2f} s, schema compiled in {1e3 * (compiled - loaded):.1f} ms\n"
    )
    print("| rows | masks filled | tokens chosen under masks | tokens chosen without |\n|---|---|---|---|")
    for rows in options.rows:
        times = _measured(rows, options.steps, folder, spec, compiler)
        cells = (_cell(values) for values in (times.fill, times.masked, times.greedy))
        print(f"| {rows} | {' | '.join(cells)} |", flush=True)


_GRAMMAR: Final = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))


def _measured(rows: int, steps: int, folder: Path, spec: ModelSpec, compiler: GrammarCompiler) -> _Times:
    sampler = Sampler(
        vocab_size=spec.vocab_size,
        eos_token_ids=spec.eos_token_ids,
        max_requests=rows,
        device=torch.device("cpu"),
    )
    logits = [torch.randn(rows, spec.vocab_size) for _ in range(_LOGITS)]
    free = [_request(slot, None, compiler) for slot in range(rows)]
    requests = [_request(slot, _GRAMMAR, compiler) for slot in range(rows)]
    times = _Times()
    for step in range(_WARM_UP + steps):
        own = logits[step % _LOGITS]
        began = time.perf_counter()
        sampler.sample(own.clone(), [_chunk(request) for request in free])
        greedy = time.perf_counter()
        chunks = [_chunk(request) for request in requests]
        masks = masks_of(chunks, constrained_rows(chunks), spec.vocab_size)
        assert not masks.errors
        filled = time.perf_counter()
        tokens = sampler.sample(own.clone(), chunks, masks).tokens.tolist()
        chosen = time.perf_counter()
        for slot, (request, token) in enumerate(zip(requests, tokens, strict=True)):
            request.output.append(token)
            if token in spec.eos_token_ids or len(request.output) == _LONGEST:
                requests[slot] = _request(slot, _GRAMMAR, compiler)
        if step >= _WARM_UP:
            times.greedy.append(greedy - began)
            times.fill.append(filled - greedy)
            times.masked.append(chosen - filled)
    return times


def _request(slot: int, grammar: Grammar | None, compiler: GrammarCompiler) -> Request:
    sampling = SamplingParams(max_tokens=_LONGEST, grammar=grammar)
    matcher = None if grammar is None else compiler.matcher(grammar)
    return Request(id=slot, prompt=[5], sampling=sampling, slot=slot, matcher=matcher)


def _chunk(request: Request) -> Chunk:
    return Chunk(request, request.slot, 0, 1, len(request.output))


def _cell(seconds: list[float]) -> str:
    median, late = np.percentile(seconds, [50, 99]) * 1e3
    return f"{median:.2f} (p99 {late:.2f})"


if __name__ == "__main__":
    main()
