"""Cost of LoRA adapters: time between tokens and of prompts, by the number of adapters in a step.

python -m benchmarks.gpu.adapters --model FOLDER --adapters 0,1,4,16 --rank 16 --points 1:1024,32:1024,64:1024

Requests take the adapters in turn. "off" is an engine without slots for adapters, in the same process.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path

import torch

from benchmarks.gpu.decode import measure
from benchmarks.lib.command import command, save_json
from benchmarks.lib.engines.gpu_engine import build_engine, engine_arguments, random_prompts
from benchmarks.lib.load.sampling_flags import sampling_of
from common.origin import namespace_of
from engine.adapters.peft_folder import LowRankPair, StoredAdapter
from engine.adapters.targets import AdapterTargets
from engine.config import LoraConfig
from engine.core.adapters import AdapterInfo, ReadAdapter
from engine.core.request import Request
from engine.executor.runner import ModelRunner
from engine.loop.engine import Engine

_ANSWER = 400
_SETTLING = 10
_PROMPTS = 8


def random_adapter(engine: Engine, number: int, rank: int) -> bytes:
    """Load an adapter of all linear layers, which changes little."""
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    generator = torch.Generator().manual_seed(number)
    pairs = {
        module: LowRankPair(
            torch.randn(rank, target.shape[1], generator=generator) / target.shape[1],
            torch.randn(target.shape[0], rank, generator=generator) / target.shape[0],
        )
        for module, target in AdapterTargets(runner.model).of.items()
    }
    path, digest = Path(f"adapter-{number}"), number.to_bytes(16, "little")
    stored = StoredAdapter(path.name, path, digest, pairs)
    info = AdapterInfo(path.name, digest, stored.rank, stored.targets, 0)
    return engine.adapters.add(ReadAdapter(info, path, stored)).digest


def requests_of(
    prompts: list[list[int]], digests: list[bytes], length: int, options: argparse.Namespace, first: int
) -> list[Request]:
    return [
        Request(
            id=first + index,
            prompt=prompt,
            sampling=sampling_of(options, length, seed=index),
            adapter=digest.hex(),
            adapter_digest=digest,
            namespace=namespace_of(adapter=digest),
        )
        for index, prompt in enumerate(prompts)
        for digest in [digests[index % len(digests)] if digests else b""]
    ]


def submit(engine: Engine, requests: list[Request]) -> None:
    for request in requests:
        engine.submit(request)


def prefill_ms(engine: Engine, context: int, digests: list[bytes], options: argparse.Namespace) -> float:
    """Milliseconds for each of some prompts that come at once, from the first step to the last token."""
    vocab, first = engine.runner.spec.vocab_size, 10**9 + engine.stats().steps * 10_000
    prompts = random_prompts(_PROMPTS, context, f"prefill-{first}", options.seed, vocab)
    torch.cuda.synchronize()
    began = time.perf_counter()
    submit(engine, requests_of(prompts, digests, 1, options, first))
    while engine.has_work:
        engine.step()
    return round(1e3 * (time.perf_counter() - began) / _PROMPTS, 2)


def point(
    engine: Engine, batch: int, context: int, digests: list[bytes], options: argparse.Namespace
) -> dict[str, float]:
    vocab, first = engine.runner.spec.vocab_size, engine.stats().steps * 10_000
    prompts = random_prompts(batch, context, f"decode-{first}", options.seed, vocab)
    requests = requests_of(prompts, digests, _ANSWER, options, first)
    submit(engine, requests)
    while any(not request.output for request in requests):
        engine.step()
    for _ in range(_SETTLING):
        engine.step()
    assert len(engine.scheduler.running) == batch, "some requests wait for slots of their adapters"
    found = measure(engine)
    for request in requests:
        engine.abort(request.id)
    while engine.has_work:
        engine.step()
    prefill_ms(engine, context, digests, options)  # loads kernels
    return found | {"prefill_ms": prefill_ms(engine, context, digests, options)}


def measured(
    engine: Engine, name: str, digests: list[bytes], options: argparse.Namespace
) -> list[dict[str, object]]:
    results: list[dict[str, object]] = []
    for text in options.points.split(","):
        batch, context = map(int, text.split(":"))
        found = {"adapters": name, "batch": batch, "context": context}
        results.append(found | point(engine, batch, context, digests[:batch], options))
        print(json.dumps(results[-1]), flush=True)
    return results


def main() -> None:
    parser = command("gpu.adapters", __doc__)
    parser.add_argument("--adapters", default="0,1,4,16", metavar="N,...")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--points", default="1:1024,32:1024,64:1024", metavar="BATCH:CONTEXT,...")
    engine_arguments(parser)
    options = parser.parse_args()
    counts = [int(text) for text in options.adapters.split(",")]
    engine = build_engine(options)
    results = measured(engine, "off", [], options)
    engine.close()
    del engine
    gc.collect()
    torch.cuda.empty_cache()
    most = max(1, *counts)
    engine = build_engine(options, LoraConfig(max_loras=most, max_lora_rank=options.rank, max_cpu_loras=most))
    digests = [random_adapter(engine, number, options.rank) for number in range(1, most + 1)]
    for count in counts:
        results += measured(engine, str(count), digests[:count], options)
        if options.output:
            save_json(options.output, results)
    engine.close()


if __name__ == "__main__":
    main()
