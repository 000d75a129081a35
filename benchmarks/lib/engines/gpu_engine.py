"""Shared by GPU benchmarks: an engine with random weights, and synthetic prompts."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch

from benchmarks.lib.load.sampling_flags import sampling_arguments, sampling_of
from common.garbage_collection import tune_gc
from engine.config import EngineConfig, LoraConfig, SchedulerConfig
from engine.core.request import Request
from engine.device.defaults import defaults_for
from engine.executor.build import build_runner
from engine.kernels.compilations import COMPILATIONS
from engine.loop.engine import Engine
from engine.loop.warmup import warm_up, warmup_plan_for


def engine_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, required=True, help="a folder with config.json")
    parser.add_argument("--quantization", choices=["fp8"], help="of unquantized weights")
    parser.add_argument("--max-model-len", type=int, default=40960, metavar="TOKENS")
    parser.add_argument("--page-size", type=int, default=16, metavar="TOKENS")
    parser.add_argument("--max-running-requests", type=int, default=1024, metavar="N")
    parser.add_argument("--chunked-prefill-size", type=int, metavar="TOKENS", help="default: by GPU memory")
    parser.add_argument("--cuda-graph-max-bs", type=int, metavar="N", help="default: by GPU memory; 0: none")
    parser.add_argument("--cuda-graph-max-tokens", type=int, metavar="N", help="the same for mixed steps")
    parser.add_argument("--no-overlap", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    sampling_arguments(parser)
    parser.add_argument("--output", type=Path, metavar="FILE.json")


def build_engine(options: argparse.Namespace, lora: LoraConfig | None = None) -> Engine:
    """An engine in bfloat16 on the first GPU, whose pool takes what is left of 90% of its memory.

    Warmed up as a worker is: on a new machine a run would measure its compiler otherwise.
    """
    suited = defaults_for(torch.cuda.get_device_properties(0).total_memory)
    chunk, graphs, tokens = (
        options.chunked_prefill_size,
        options.cuda_graph_max_bs,
        options.cuda_graph_max_tokens,
    )
    config = EngineConfig(
        model_path=options.model,
        device="cuda",
        dtype="bfloat16",
        load_format="dummy",
        quantization=options.quantization,
        num_pages=0,
        page_size=options.page_size,
        max_model_len=options.max_model_len,
        scheduler=SchedulerConfig(
            max_running_requests=options.max_running_requests,
            max_waiting_requests=1_000_000,
            chunk_budget=suited.chunk_budget if chunk is None else chunk,
        ),
        cuda_graph_max_batch=suited.graph_batch if graphs is None else graphs,
        cuda_graph_max_tokens=suited.graph_tokens if tokens is None else tokens,
        overlap=not options.no_overlap,
        lora=lora,
    )
    runner, drafts = build_runner(config)
    engine = Engine(config, runner=runner, drafts=drafts)
    warm_up(runner, config, warmup_plan_for(config), drafts)
    COMPILATIONS.serve()
    tune_gc()
    return engine


def random_prompts(count: int, length: int, name: str, seed: int, vocab: int) -> list[list[int]]:
    """Prompts that share no prefix: the same for the same arguments, on any machine and for any engine."""
    prompts = []
    for index in range(count):
        rng = random.Random(f"ids-{name}-{seed}-{index}")
        prompts.append(rng.choices(range(16, vocab - 512), k=length))
    return prompts


def submit(
    engine: Engine,
    prompts: list[list[int]],
    output_length: int,
    options: argparse.Namespace,
    first_id: int = 0,
) -> list[Request]:
    """Queue the prompts, to be answered to full length, sampled as `options` say."""
    requests = [
        Request(id=first_id + i, prompt=p, sampling=sampling_of(options, output_length, seed=first_id + i))
        for i, p in enumerate(prompts)
    ]
    for request in requests:
        engine.submit(request)
    return requests
