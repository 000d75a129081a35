"""`--reproducible` on a GPU: its cost beside the default, and a count of logits that differ.

python -m benchmarks.gpu.reproducible --model FOLDER                      # cost, then bits
python -m benchmarks.gpu.reproducible --model FOLDER --rounds 0           # bits alone

Cost: decode steps and prefills through both kinds of engine in one process, in turns; medians of the rounds.
Bits: a checksum of all logits at each position of sampled answers, compared among the ways to compute them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from benchmarks.gpu.decode import fill, measure
from benchmarks.lib.command import command, save_json
from benchmarks.lib.engines.gpu_engine import random_prompts
from benchmarks.lib.load.sampling_flags import sampling_arguments
from engine.config import UNIFORM, EngineConfig, SchedulerConfig, SpeculationConfig
from engine.core.plan import Chunk
from engine.core.request import Request
from engine.core.sampling_params import PromptLogprobs, SamplingParams
from engine.executor.build import build_runner
from engine.loop.engine import Engine
from engine.loop.warmup import warm_up, warmup_plan_for
from engine.speculation.kinds import DrafterKind, DraftHints

_BACKENDS: Final = {"default": "auto", "reproducible": UNIFORM}
_DRAFTED: Final = SpeculationConfig(
    drafters=frozenset({DrafterKind.PREDICTION}), num_draft_tokens=5, adaptive=False
)
_ALONE: Final = 4
"""Requests that are computed alone."""

Checksums = dict[tuple[int, int], int]
"""Checksums keyed by request and output position."""


def engine_of(options: argparse.Namespace, backend: str, **changes: Any) -> Engine:
    scheduler = SchedulerConfig(
        max_running_requests=options.batch, max_waiting_requests=100_000, chunk_budget=options.chunk
    )
    config = EngineConfig(
        model_path=options.model,
        device="cuda",
        dtype="bfloat16",
        load_format="dummy",
        num_pages=options.kv_tokens // 16,
        max_model_len=max(options.prefills) + 256,
        scheduler=replace(scheduler, **changes.pop("scheduler", {})),
        attention_backend=backend,
        cuda_graph_max_batch=options.batch,
        overlap=True,
    )
    config = replace(config, **changes)
    runner, drafts = build_runner(config)
    engine = Engine(config, runner=runner, drafts=drafts)
    warm_up(runner, config, warmup_plan_for(config), drafts)
    return engine


# ------------------------------------------------------------------------------------------ cost


def cost(engine: Engine, options: argparse.Namespace, turn: int) -> dict[str, float]:
    """Milliseconds of a decode step by batch, and of prefills by length."""
    vocab, found = engine.runner.spec.vocab_size, {}
    for batch in (1, options.batch):
        fill(engine, batch, options.context, options, vocab)
        found[f"decode of {batch}"] = measure(engine)["step_p50_ms"]
        for request in [*engine.scheduler.running, *engine.scheduler.waiting]:
            engine.abort(request.id)
        while engine.has_work:
            engine.step()
    for length in options.prefills:
        (prompt,) = random_prompts(1, length, f"prefill-{turn}", options.seed, vocab)
        torch.cuda.synchronize()
        began = time.perf_counter()
        engine.submit(Request(10_000_000 + turn * 100_000 + length, prompt, SamplingParams(max_tokens=1)))
        while engine.has_work:
            engine.step()
        found[f"prefill of {length}"] = 1000 * (time.perf_counter() - began)
    return found


def compare_cost(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    engines = {name: engine_of(options, backend) for name, backend in _BACKENDS.items()}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for turn in range(options.rounds + 1):
        for name, engine in engines.items():
            rounds[name].append(cost(engine, options, turn))
    for engine in engines.values():
        engine.close()
    results = {}
    for what in rounds["default"][0]:
        before, after = (median(each[what] for each in rounds[name][1:]) for name in _BACKENDS)
        results[what] = {
            "default ms": round(before, 2),
            "reproducible ms": round(after, 2),
            "ratio": round(after / before, 3),
        }
        print(f"{what}: {results[what]}", flush=True)
    return results


# ------------------------------------------------------------------------------------------ bits


class Watched:
    """Checksums of the logits that an engine samples from."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._rows: list[tuple[torch.Tensor, list[tuple[int, int]]]] = []
        sampler: Any = engine.runner._sampler  # type: ignore[attr-defined]
        sample = sampler.sample
        factors = torch.arange(engine.runner.spec.vocab_size, device="cuda") * 2_654_435_761 + 1

        def watched(logits: torch.Tensor, chunks: Sequence[Chunk], *rest: Any) -> Any:
            sums = (logits.view(torch.int16).long() * factors[: logits.shape[1]]).sum(dim=1)
            self._rows.append((sums, [(chunk.request.id, chunk.output_index or 0) for chunk in chunks]))
            return sample(logits, chunks, *rest)

        sampler.sample = watched

    def run(self, requests: Sequence[Request]) -> tuple[Checksums, dict[int, list[float]]]:
        """Checksums, where the last of a position counts, and log-probabilities of the tokens by request.

        Before a request's answer those of its prompt, if it asks for them.
        """
        self._rows.clear()
        logprobs: dict[int, list[float]] = {request.id: [] for request in requests}
        for request in requests:
            self.engine.submit(request)
        while self.engine.has_work:
            output = self.engine.step()
            assert not output.failed, output.failed
            for scored, numbers in output.outputs:
                assert isinstance(numbers, PromptLogprobs)
                logprobs[scored.id] += numbers.logprobs
            for token in output.tokens:
                if token.logprobs is not None:
                    logprobs[token.request.id].append(token.logprobs.logprob)
        found: Checksums = {}
        for sums, keys in self._rows:
            found.update(zip(keys, sums.tolist(), strict=True))
        return found, logprobs


def asked(prompts: Sequence[Sequence[int]], options: argparse.Namespace, **more: Any) -> list[Request]:
    return [
        Request(
            index,
            list(prompt),
            SamplingParams(
                max_tokens=options.tokens, temperature=1.0, seed=index, ignore_eos=True, logprobs=0
            ),
            **{name: values[index] for name, values in more.items()},
        )
        for index, prompt in enumerate(prompts)
    ]


def count_differing(options: argparse.Namespace) -> dict[str, str]:
    found: dict[str, str] = {}

    def note(way: str, differ: int, of: int) -> None:
        found[way] = f"{differ} of {of}"
        print(f"{way}: {differ} of {of} positions differ", flush=True)

    with_graphs = Watched(engine_of(options, UNIFORM))
    vocab = with_graphs.engine.runner.spec.vocab_size
    prompts = [
        prompt
        for index in range(options.batch)
        for prompt in random_prompts(1, 30 + 23 * index, f"bits-{index}", options.seed, vocab)
    ]
    first = asked(prompts, options)
    base, logprobs = with_graphs.run(first)
    answers = [list(request.output) for request in first]

    def differing(other: Checksums) -> tuple[int, int]:
        return sum(base[key] != value for key, value in other.items()), len(other)

    note("prefix hits, graphs", *differing(with_graphs.run(asked(prompts, options))[0]))
    alone = {}
    for request in asked(prompts, options)[:: max(1, options.batch // _ALONE)]:
        alone.update(with_graphs.run([request])[0])
    note("alone, graphs", *differing(alone))
    with_graphs.engine.close()

    odd = {"chunk_budget": 509, "page_aligned_chunks": False, "speculation": _DRAFTED}
    eager = Watched(
        engine_of(
            options,
            UNIFORM,
            scheduler=odd,
            cuda_graph_max_batch=0,
            page_size=64,
            num_pages=options.kv_tokens // 64,
            radix_cache=False,
        )
    )
    note("chunks of 509, pages of 64, eager", *differing(eager.run(asked(prompts, options))[0]))
    hints = [DraftHints(prediction=answer) for answer in answers]
    note("5 drafts verified, eager", *differing(eager.run(asked(prompts, options, hints=hints))[0]))
    whole = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    scoring = SamplingParams(max_tokens=1, prompt_logprobs=1)
    _, scored = eager.run([Request(index, tokens, scoring) for index, tokens in enumerate(whole)])
    pairs = [
        pair
        for index, answer in enumerate(answers)
        for pair in zip(scored[index][-len(answer) :], logprobs[index], strict=True)
    ]
    note("log-probabilities as a prompt", sum(a != b for a, b in pairs), len(pairs))
    eager.engine.close()
    return found


def main() -> None:
    parser = command("gpu.reproducible", __doc__)
    parser.add_argument("--model", type=Path, required=True, help="a folder with config.json")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--context", type=int, default=1024, help="mean tokens of a decode's context")
    parser.add_argument("--prefills", type=int, nargs="+", default=[4096, 16_384], help="tokens of prompts")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of an answer whose bits are compared")
    parser.add_argument("--chunk", type=int, default=16_384, help="prompt tokens of a step")
    parser.add_argument("--kv-tokens", type=int, default=160_000)
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms up; 0: no costs")
    parser.add_argument("--no-bits", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    sampling_arguments(parser)
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    if options.rounds:
        results["cost"] = compare_cost(options)
    if not options.no_bits:
        results["bits"] = count_differing(options)
    print(json.dumps(results))
    if options.output:
        save_json(options.output, results)


if __name__ == "__main__":
    main()
