"""Verify steps beside decode steps on a GPU, with random weights and a drafter whose acceptance is set.

python -m benchmarks.gpu.speculation --model FOLDER --points 1:1024,64:1024 --drafts 4 --acceptance 0.7

For each point, BATCH:CONTEXT[:DRAFTS], three figures side by side: a decode step; a verify step of
1 + `--drafts` tokens per request, all drafts wrong; TPOT without drafts, and with drafts of which each is
right with the probability `--acceptance`. The output layer's weights are zero, so that the answer is known:
token 0 always.
--draft-model FOLDER adds TPOT with a draft model or an EAGLE-3 head, whose guesses are then all right.

--flips TOKENS: in place of that, how often the most likely token of a verify step differs from that of a
decode step over this many positions, with random weights, and between decodes in batches of two sizes.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.gpu.decode import Stopwatch, measure, profile
from benchmarks.lib.engines.gpu_engine import build_engine, engine_arguments, random_prompts
from benchmarks.lib.engines.oracle import Oracle, speculate
from engine.config import SpeculationConfig
from engine.core.request import Request, TokenId
from engine.core.sampling_params import SamplingParams
from engine.engine import Engine
from engine.executor.runner import ModelRunner
from engine.speculation.drafters import Drafter
from engine.speculation.kinds import DrafterKind

__all__ = ["flips", "point"]

_LONGEST: Final = 160
"""Steps of a request at most: those that settle, those measured, those profiled."""
_SETTLING: Final = 10


class _Known:
    """Oracles of requests whose answers are known, by id."""

    def __init__(self, answers: dict[int, list[TokenId]], vocab: int, acceptance: float) -> None:
        self._answers, self._vocab, self._acceptance = answers, vocab, acceptance
        self._rng = random.Random(1)

    def __call__(self, request: Request) -> list[Drafter]:
        return [Oracle(self._answers[request.id], self._vocab, self._acceptance, self._rng)]


def start(engine: Engine, prompts: Sequence[list[int]], tokens: int, first_id: int) -> list[Request]:
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    requests = [Request(first_id + i, prompt, sampling) for i, prompt in enumerate(prompts)]
    for request in requests:
        engine.submit(request)
    while any(len(request.output) < 2 for request in requests):
        engine.step()
    return requests


def end(engine: Engine) -> None:
    for request in [*engine.scheduler.running, *engine.scheduler.waiting]:
        engine.abort(request.id)
    while engine.has_work:
        engine.step()


def timed(engine: Engine, requests: Sequence[Request], *, profiled: bool) -> dict[str, Any]:
    """Milliseconds a step, those of the host among them, and milliseconds a token of each request."""
    for _ in range(_SETTLING):
        engine.step()
    before, steps = sum(r.num_known for r in requests), engine.stats().steps
    with Stopwatch(engine, "_finish") as finish:
        times = measure(engine)
    steps = engine.stats().steps - steps
    tokens = (sum(r.num_known for r in requests) - before) / len(requests) / steps
    measured = times | {
        "wait_and_finish_ms": round(1e3 * finish.seconds / steps, 3),
        "tokens_a_step": round(tokens, 3),
        "tpot_ms": round(times["step_ms"] / tokens, 3),
    }
    return measured | (profile(engine) if profiled else {})


def point(
    engine: Engine, batch: int, context: int, drafts: int, acceptance: float, *, profiled: bool = False
) -> dict[str, Any]:
    vocab = engine.runner.spec.vocab_size
    prompts = random_prompts(batch, context, "speculation", 1, vocab)
    result: dict[str, Any] = {"batch": batch, "context": context, "drafts": drafts, "acceptance": acceptance}
    config = SpeculationConfig(drafters=frozenset(), num_draft_tokens=drafts, adaptive=False)
    answer = [0] * (_LONGEST * (1 + drafts))
    kinds: tuple[tuple[str, float | None], ...] = (("decode", None), ("wrong", 0.0), ("oracle", acceptance))
    for number, (name, right) in enumerate(kinds):
        known = _Known(
            dict.fromkeys(range(1_000 * number, 1_000 * number + batch), answer), vocab, right or 0.0
        )
        speculate(engine, None if right is None else config, known)
        requests = start(engine, prompts, len(answer), 1_000 * number)
        result[name] = timed(engine, requests, profiled=profiled)
        end(engine)
    if engine.drafts is not None:
        speculate(engine, replace(config, drafters=frozenset({DrafterKind.MODEL})))
        requests = start(engine, prompts, len(answer), 1_000 * len(kinds))
        result["model"] = timed(engine, requests, profiled=profiled)
        end(engine)
    speculate(engine, None)
    result["verify_step"] = round(result["wrong"]["step_ms"] / result["decode"]["step_ms"], 3)
    result["tpot"] = round(result["oracle"]["tpot_ms"] / result["decode"]["tpot_ms"], 3)
    return result


def flips(engine: Engine, positions: int, drafts: int, batch: int, context: int) -> dict[str, Any]:
    """Positions up to the first difference of each answer, and how many answers have one."""
    vocab = engine.runner.spec.vocab_size
    counted = {"verify": [0, 0], "batch": [0, 0]}
    first, length = 1_000_000, 256
    while counted["verify"][0] < positions:
        first += 10 * batch
        prompts = random_prompts(batch, context, f"flips-{first}", 1, vocab)
        plain = _answers(engine, prompts, length, first)
        half = _answers(engine, prompts[: batch // 2], length, first + batch)
        known = {first + 2 * batch + i: answer for i, answer in enumerate(plain)}
        speculate(
            engine, SpeculationConfig(num_draft_tokens=drafts, adaptive=False), _Known(known, vocab, 1.0)
        )
        verified = _answers(engine, prompts, length, first + 2 * batch)
        speculate(engine, None)
        for name, others in (("verify", verified), ("batch", half)):
            for one, other in zip(plain, others, strict=False):
                same = next((i for i in range(length) if one[i] != other[i]), length)
                counted[name][0] += min(same + 1, length)
                counted[name][1] += same < length
        print(json.dumps(counted), flush=True)
    return {name: {"positions": n, "differ": d, "rate": d / n} for name, (n, d) in counted.items()}


def _answers(engine: Engine, prompts: Sequence[list[int]], length: int, first: int) -> list[list[TokenId]]:
    requests = start(engine, prompts, length, first)
    while engine.has_work:
        engine.step()
    return [request.output for request in requests]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.speculation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--points", default="1:1024,64:1024", metavar="BATCH:CONTEXT[:DRAFTS],...")
    parser.add_argument(
        "--drafts", type=int, default=4, metavar="N", help="drafted tokens per request and step"
    )
    parser.add_argument("--acceptance", type=float, default=0.7, metavar="P")
    parser.add_argument("--draft-model", type=Path, metavar="FOLDER", help="with a config.json")
    parser.add_argument("--profile", action="store_true", help="the GPU's idle share and kernels too")
    parser.add_argument("--flips", type=int, metavar="TOKENS")
    engine_arguments(parser)
    options = parser.parse_args()
    speculation = SpeculationConfig(num_draft_tokens=options.drafts, model_path=options.draft_model)
    engine = build_engine(options, speculation)
    speculate(engine, None)
    points = [tuple(map(int, point.split(":"))) for point in options.points.split(",")]
    results: list[dict[str, Any]] = []
    if options.flips:
        results.append(flips(engine, options.flips, options.drafts, *points[-1][:2]))
        print(json.dumps(results[-1], indent=1))
    else:
        with torch.inference_mode():
            assert isinstance(engine.runner, ModelRunner)
            engine.runner._model.head.weight.zero_()
            drafts: Any = engine.drafts
            if drafts is not None:
                drafts._runner._model.head.weight.zero_()
        for batch, context, *drafts_of in points:
            drafted = drafts_of[0] if drafts_of else options.drafts
            results.append(
                point(engine, batch, context, drafted, options.acceptance, profiled=options.profile)
            )
            print(json.dumps(results[-1], indent=1), flush=True)
    if options.output:
        options.output.write_text(json.dumps(results, indent=2) + "\n")
    engine.close()


if __name__ == "__main__":
    main()
