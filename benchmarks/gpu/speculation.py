"""Verify steps beside decode steps on a GPU, with random weights and a drafter whose acceptance is set.

python -m benchmarks.gpu.speculation --model FOLDER --points 1:1024,64:1024 --drafts 4 --acceptance 0.7

For each point, BATCH:CONTEXT[:DRAFTS], side by side: a decode step; a verify step of 1 + `--drafts` tokens of
each request, all drafts wrong; TPOT without drafts, and with drafts of which each is right with the
probability `--acceptance`, as many as there are (`oracle`) or as the engine decides (`adaptive`;
`adaptive_wrong`: none is right). The output layer's weights are zero, so that the answer is known: token 0
always.
--draft-model FOLDER adds TPOT with a draft model or an EAGLE-3 head, whose guesses are then all right.

--flips TOKENS: in place of that, how often the most likely token of a verify step differs from that of a
decode step over this many positions, given the same tokens before it, and between decodes in batches of two
sizes; and how near the second most likely token was where it did. Weights are random.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.gpu.decode import Stopwatch, measure, profile
from benchmarks.lib.command import command, save_json
from benchmarks.lib.engines.gpu_engine import build_engine, engine_arguments, random_prompts
from benchmarks.lib.engines.oracle import Oracle, speculate
from engine.config import SpeculationConfig
from engine.core.request import Request, TokenId
from engine.core.sampling_params import SamplingParams
from engine.executor.base import StepResult
from engine.executor.runner import ModelRunner
from engine.loop.engine import Engine
from engine.loop.in_flight import Launched
from engine.speculation.drafters import Drafter
from engine.speculation.kinds import DrafterKind

__all__ = ["flips", "point"]

_LONGEST: Final = 220
"""Steps of a request at most: those that settle, those measured, those profiled."""
_SETTLING: Final = 10
_LEARNING: Final = 60
"""Steps before those that are measured where the engine decides how many tokens to draft."""


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
    for name, right in (("adaptive", acceptance), ("adaptive_wrong", 0.0)):
        first = 10_000 + 1_000 * (name == "adaptive")
        known = _Known(dict.fromkeys(range(first, first + batch), answer), vocab, right)
        speculate(engine, replace(config, adaptive=True), known)
        requests = start(engine, prompts, len(answer), first)
        for _ in range(_LEARNING):
            engine.step()
        result[name] = timed(engine, requests, profiled=False)
        result[f"{name}_tpot"] = round(result[name]["tpot_ms"] / result["decode"]["tpot_ms"], 3)
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


class _Forced:
    """While it is entered, every step yields the known answers; counts where it sampled something else."""

    def __init__(self, engine: Engine, answers: dict[int, list[TokenId]]) -> None:
        self._engine, self._answers = engine, answers
        self._result_of = engine._result_of
        self.positions = 0
        self.differ: list[tuple[int, int]] = []
        """Request and position in its answer."""

    def __enter__(self) -> _Forced:
        self._engine._result_of = self._forced  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        del self._engine._result_of

    def _forced(self, launched: Launched) -> StepResult:
        result = self._result_of(launched)
        tokens = result.tokens
        for row, chunk in enumerate(launched.plan.sampling()):
            place, answer = chunk.output_index, self._answers.get(chunk.request.id)
            if answer is None or place is None or place >= len(answer):
                continue
            self.positions += 1
            if tokens[row] != answer[place]:
                self.differ.append((chunk.request.id, place))
                tokens[row] = answer[place]
        return result


def flips(engine: Engine, positions: int, drafts: int, batch: int, context: int) -> dict[str, Any]:
    """Of the most likely token of each position, given the same tokens before it: how often it is another in
    a verify step, and in a decode of half the batch, than in a decode of the whole batch; and by how much
    the log-probabilities of the two most likely ones differed there in the decode."""
    vocab, config = engine.runner.spec.vocab_size, engine.config
    length, first, margins = 256, 1_000_000, list[float]()
    counted, near = {"verify": 0, "batch": 0}, {"verify": list[float](), "batch": list[float]()}
    speculation = SpeculationConfig(num_draft_tokens=drafts, adaptive=False)
    while len(margins) < positions:
        first += 10 * batch
        prompts = random_prompts(batch, context, f"flips-{first}", 1, vocab)
        plain, gaps = _answers(engine, prompts, length, first)
        margins += [gap for of_one in gaps for gap in of_one]
        for number, (name, count) in enumerate((("verify", batch), ("batch", batch // 2)), 1):
            ids = range(first + number * batch, first + number * batch + count)
            known = dict(zip(ids, plain, strict=False))
            speculate(engine, speculation if name == "verify" else None, _Known(known, vocab, 1.0))
            # Each step is read before the next one, so that that one begins with the known tokens.
            engine.config = replace(config, overlap=False)
            with _Forced(engine, known) as forced:
                _answers(engine, prompts[:count], length, ids[0])
            engine.config = config
            counted[name] += forced.positions
            near[name] += [gaps[id - ids[0]][place] for id, place in forced.differ]
        speculate(engine, None)
    by_margin = {str(m): sum(gap <= m for gap in margins) / len(margins) for m in (0, 0.01, 0.03, 0.1)}
    return {"margins_at_most": by_margin} | {
        name: {
            "positions": number,
            "differ": len(near[name]),
            "rate": len(near[name]) / number,
            "largest_margin": max(near[name], default=0.0),
        }
        for name, number in counted.items()
    }


def _answers(
    engine: Engine, prompts: Sequence[list[int]], length: int, first: int
) -> tuple[list[list[TokenId]], list[list[float]]]:
    """Greedy answers, and by how much the two most likely tokens of each position differ."""
    sampling = SamplingParams(max_tokens=length, ignore_eos=True, logprobs=2)
    requests = [Request(first + i, prompt, sampling) for i, prompt in enumerate(prompts)]
    margins: dict[int, list[float]] = {request.id: [] for request in requests}
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        for out in engine.step().tokens:
            assert out.logprobs is not None
            (_, likely), (_, second) = out.logprobs.top[:2]
            margins[out.request.id].append(likely - second)
    return [request.output for request in requests], list(margins.values())


def main() -> None:
    parser = command("gpu.speculation", __doc__)
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
        save_json(options.output, results)
    engine.close()


if __name__ == "__main__":
    main()
