"""Cost of LoRA adapters: time between tokens and of prompts, by the number of adapters in a step.

python -m benchmarks.gpu.adapters --model FOLDER --adapters 0,1,4,16 --rank 16 --points 1:1024,32:1024,64:1024

Requests take the adapters in turn. "off" is an engine without slots for adapters, in the same process.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file

from benchmarks.gpu.decode import measure
from benchmarks.lib.command import command, save_json
from benchmarks.lib.engines.gpu_engine import build_engine, engine_arguments, random_prompts
from benchmarks.lib.load.sampling_flags import sampling_of
from common.origin import namespace_of
from engine.adapters.targets import AdapterTargets
from engine.config import LoraConfig
from engine.core.request import Request
from engine.executor.runner import ModelRunner
from engine.loop.engine import Engine

_ANSWER = 400
_SETTLING = 10
_PROMPTS = 8


def save_random_adapter(engine: Engine, rank: int, folder: Path) -> None:
    """Save an adapter of all linear layers, which changes little."""
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    shapes = {module: target.shape for module, target in AdapterTargets(runner.model).of.items()}
    tensors = {}
    for module, (features_out, features_in) in shapes.items():
        prefix = f"base_model.model.{module}.lora_"
        tensors[f"{prefix}A.weight"] = torch.randn(rank, features_in, dtype=torch.bfloat16) / features_in
        tensors[f"{prefix}B.weight"] = torch.randn(features_out, rank, dtype=torch.bfloat16) / features_out
    save_file(tensors, folder / "adapter_model.safetensors")
    modules = sorted({module.rpartition(".")[2] for module in shapes})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": modules}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def load(engine: Engine, count: int, folder: Path) -> list[bytes]:
    """Load the same adapter as this many others; digests tell them apart."""
    bank = engine.runner.adapters
    assert bank is not None
    read = bank.read("random", folder)
    for number in range(1, count + 1):
        info = replace(read.info, name=f"adapter-{number}", digest=number.to_bytes(16, "little"))
        engine.adapters.add(replace(read, info=info))
    return [number.to_bytes(16, "little") for number in range(1, count + 1)]


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
    with TemporaryDirectory() as folder:
        save_random_adapter(engine, options.rank, Path(folder))
        digests = load(engine, most, Path(folder))
    for count in counts:
        results += measured(engine, str(count), digests[:count], options)
        if options.output:
            save_json(options.output, results)
    engine.close()


if __name__ == "__main__":
    main()
