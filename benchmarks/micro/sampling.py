"""Time to sample the tokens of one step, by sampling parameters. The model is not run.

On a GPU, device time (events around calls that are queued behind a pause) and host time to enqueue them. On a
CPU, wall time on one thread. Medians, over several sets of random logits in turn.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import torch

from benchmarks.lib.command import command
from benchmarks.lib.machine import describe_machine
from engine.core.plan import Chunk
from engine.core.request import PENDING, Request
from engine.core.sampling_params import SamplingParams
from engine.sampling.sampler import Sampler

_DRAWN: Final = SamplingParams(max_tokens=1000, temperature=1.0)
_NUCLEUS: Final = replace(_DRAWN, top_p=0.95)
_PENALISED: Final = {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.1}

SETS: Final[dict[str, SamplingParams]] = {
    "greedy": SamplingParams(max_tokens=1000),
    "temperature 1": _DRAWN,
    "top-p 0.95": _NUCLEUS,
    "top-p 0.5": replace(_DRAWN, top_p=0.5),
    "top-k 50": replace(_DRAWN, top_k=50),
    "top-k 50, top-p 0.95": replace(_NUCLEUS, top_k=50),
    "min-p 0.05": replace(_DRAWN, min_p=0.05),
    "top-p 0.95, min-p 0.01": replace(_NUCLEUS, min_p=0.01),
    "top-p 0.95, penalties": replace(_NUCLEUS, **_PENALISED),  # type: ignore[arg-type]
    "top-p 0.95, logprobs 5": replace(_NUCLEUS, logprobs=5),
    "top-p 0.95, logprobs 20": replace(_NUCLEUS, logprobs=20),
    "all of it": replace(_NUCLEUS, top_k=50, min_p=0.01, logprobs=5, **_PENALISED),  # type: ignore[arg-type]
}
_LOGITS: Final = 3
"""Sets of logits, so that a step does not find the last one's in a cache."""
_WARM_UP: Final = 3
_PROMPT: Final = 500
_PAUSE_CYCLES: Final = 20_000_000
"""Some 10 ms, in which the host queues a step."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = command("micro.sampling", __doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=int, nargs="+", default=None)
    parser.add_argument("--vocab", type=int, default=None)
    parser.add_argument("--spread", type=float, nargs="+", default=[1.0, 4.0], help="of the logits")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--only", nargs="+", choices=list(SETS), default=list(SETS))
    options = parser.parse_args(argv)
    device = torch.device(options.device)
    on_gpu = device.type == "cuda"
    torch.set_num_threads(1)
    vocab = options.vocab or (128_256 if on_gpu else 49_152)
    rows = options.rows or ([1, 32, 256] if on_gpu else [1, 16])
    print(f"{describe_machine()}; vocabulary {vocab}; ms a step{', device / host' if on_gpu else ''}\n")
    print(f"| {'asked for':24} |" + "".join(f" {n} × spread {s:g} |" for n in rows for s in options.spread))
    print("|---" * (1 + len(rows) * len(options.spread)) + "|")
    cells: dict[str, list[str]] = {name: [] for name in options.only}
    for n in rows:
        for spread in options.spread:
            for name, cell in _column(n, vocab, spread, options.only, options.repeat, device).items():
                cells[name].append(cell)
    for name, row in cells.items():
        print(f"| {name:24} |" + "".join(f" {cell} |" for cell in row), flush=True)


def _column(
    rows: int, vocab: int, spread: float, names: Sequence[str], repeat: int, device: torch.device
) -> dict[str, str]:
    generator = torch.Generator(device).manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    logits = [
        (torch.randn(rows, vocab, generator=generator, device=device) * spread).to(dtype)
        for _ in range(_LOGITS)
    ]
    sampler = Sampler(vocab_size=vocab, eos_token_ids=[0], max_requests=rows, device=device)
    cells = {}
    for name in names:
        steps = _steps(SETS[name], rows, vocab, 2 * repeat + _WARM_UP)

        def step(i: int, steps: Iterator[list[Chunk]] = steps) -> None:
            sampler.sample(logits[i % _LOGITS], next(steps))

        for i in range(_WARM_UP):
            step(i)
        cells[name] = _on_gpu(step, repeat) if device.type == "cuda" else _on_cpu(step, repeat)
    return cells


def _steps(sampling: SamplingParams, rows: int, vocab: int, count: int) -> Iterator[list[Chunk]]:
    """Chunks of steps that follow each other: every step draws at the next position."""
    prompt = random.Random(0).choices(range(vocab), k=_PROMPT)
    requests = [Request(id, prompt, replace(sampling, seed=id), slot=id) for id in range(rows)]
    for request in requests:
        request.output = [PENDING] * count
    return iter([[Chunk(r, r.slot, _PROMPT + i, 1, i) for r in requests] for i in range(count)])


def _on_cpu(step: Callable[[int], None], repeat: int) -> str:
    return f"{_median(step, repeat):.2f}"


def _on_gpu(step: Callable[[int], None], repeat: int) -> str:
    device = []
    host = _median(step, repeat)
    torch.cuda.synchronize()
    for i in range(repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(_PAUSE_CYCLES)  # type: ignore[no-untyped-call]
        begin.record()
        step(i)
        end.record()
        torch.cuda.synchronize()
        device.append(begin.elapsed_time(end))
    return f"{statistics.median(device):.3f} / {host:.2f}"


def _median(step: Callable[[int], None], repeat: int) -> float:
    times = []
    for i in range(repeat):
        begin = time.perf_counter()
        step(i)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


if __name__ == "__main__":
    main()
