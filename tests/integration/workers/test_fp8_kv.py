"""KV in 8 bits: answers are those of transformers with rounded keys and values, wherever they are computed.

A token attends to stored keys and values only, also to those of its own step. So chunks, cache hits,
preemptions, handoffs and moves change nothing.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from engine.model_config.errors import WeightsError
from engine.modeling.loader.kv_scales import kv_scales
from engine.modeling.loader.model_loader import load_model
from rpc.baton.v1 import worker_pb2
from tests.engine_config import engine_config
from tests.integration.conftest import Oracle
from tests.integration.tiny_cluster import pair, work
from tests.integration.workers.test_live_migration import LENGTH, running
from tests.integration.workers.test_mixed_worker import prompt
from tests.unit.tiny import save_tiny_llama
from worker.kv_pool_access import layout_of

SCALES = ((0.011, 0.0013), (0.0078125, 0.002))
"""Scales of keys and values of both layers; some keys are cut."""
FP8: dict[str, Any] = {"fp8_kv": True}


def rounded(values: Tensor, scale: float) -> Tensor:
    return (values / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


def fp8_attention(module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Any:
    of_keys, of_values = SCALES[module.layer_idx]
    key, value = rounded(key, of_keys), rounded(value, of_values)
    return sdpa_attention_forward(module, query, key, value, *args, **options)


AttentionInterface.register("fp8_kv", fp8_attention)
AttentionMaskInterface.register("fp8_kv", sdpa_mask)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with the scales that llm-compressor adds."""
    folder = tmp_path_factory.mktemp("fp8-kv")
    save_tiny_llama(folder)
    tensors = load_file(folder / "model.safetensors")
    for layer, (of_keys, of_values) in enumerate(SCALES):
        tensors[f"model.layers.{layer}.self_attn.k_scale"] = torch.tensor([of_keys])
        tensors[f"model.layers.{layer}.self_attn.v_scale"] = torch.tensor([of_values])
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle(LlamaForCausalLM.from_pretrained(folder, attn_implementation="fp8_kv").eval())


PROMPTS = [prompt(length, seed=length) for length in (1, 5, 33, 90)]


@pytest.fixture(scope="module")
def answers(oracle: Oracle) -> list[list[int]]:
    return [oracle(prompt, 16) for prompt in PROMPTS]


def engine(folder: Path, chunk: int | None = 16, page: int = 4, tokens: int = 512, **settings: Any) -> Engine:
    return Engine(
        engine_config(
            model_path=folder,
            chunk_budget=chunk,
            page_size=page,
            num_pages=tokens // page,
            max_model_len=256,
            max_running_requests=8,
            **FP8 | settings,
        )
    )


def answered(engine: Engine) -> list[list[int]]:
    sampling = SamplingParams(max_tokens=16, min_tokens=16)
    requests = [Request(id, prompt, sampling) for id, prompt in enumerate(PROMPTS)]
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        engine.step()
    pages = engine.check_pages()
    assert pages.free + pages.cached == pages.total
    return [request.output for request in requests]


def test_rounding_changes_the_answers(folder: Path, answers: list[list[int]]) -> None:
    """Otherwise the tests below would show nothing."""
    assert answered(engine(folder, fp8_kv=False)) != answers


@pytest.mark.parametrize(("chunk", "page"), [(None, 16), (1, 1), (7, 4), (48, 4)])
def test_answers_do_not_depend_on_chunks_nor_on_the_cache(
    folder: Path, answers: list[list[int]], chunk: int | None, page: int
) -> None:
    served = engine(folder, max(chunk, page) if chunk else None, page)
    assert answered(served) == answers
    assert answered(served) == answers
    assert served.stats().cache_hit_tokens > 0


def test_preempted_answers_are_the_same(
    folder: Path, answers: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "engine.sched.output_lengths.OutputLengths.remaining",
        lambda _, requests: np.zeros(len(requests), dtype=int),
    )
    small = engine(folder, tokens=156)
    assert answered(small) == answers
    assert small.stats().preemptions > 0


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.timeout(600)
async def test_handed_off_answers_are_the_same(folder: Path, oracle: Oracle, ranks: int) -> None:
    sharded = FP8 | ({"tensor_parallel_size": ranks, "kv_by_ranks": True} if ranks > 1 else {})
    single = FP8 | ({"kv_by_ranks": True} if ranks > 1 else {})
    async with pair(folder, "nixl", sharded, single) as workers:
        jobs = [work(prompt(length, seed=length), max_tokens=6) for length in (3, 33, 70)]
        outputs = await asyncio.gather(*(workers.generate(job) for job in jobs))
        assert outputs == [oracle(list(job.prompt), 6) for job in jobs]
        await workers.all_pages_back()


async def test_moved_answers_are_the_same(folder: Path, oracle: Oracle) -> None:
    async with running(folder, source=FP8, target=FP8) as move:
        await move.migrate(await move.reserve())
        await move.target.next(move.there.request_id, "arrived")
        await move.rest(move.source, move.here.request_id)
        await move.rest(move.target, move.there.request_id)
        assert move.complete() == oracle(prompt(30), LENGTH)
        await move.all_pages_back()


async def test_a_page_takes_a_quarter_of_the_bytes_of_float32(folder: Path) -> None:
    async with pair(folder, "loopback", FP8, {}) as workers:
        infos = [
            await link.stub.Describe(worker_pb2.DescribeRequest())
            for link in (workers.prefill, workers.decode)
        ]
        stored, plain = (info.peer.page_bytes for info in infos)
        assert 4 * stored == plain
        assert infos[0].layout_hash != infos[1].layout_hash


def test_pages_with_other_scales_are_other_pages(folder: Path, tmp_path: Path) -> None:
    served = engine(folder)
    layout = layout_of(served.runner)

    assert layout.dtype == "float8_e4m3fn"
    assert layout.scales == pytest.approx(np.array(SCALES))
    assert layout.computed_in == "float32"
    for change in ({"scales": ((1.0, 1.0),) * 2}, {"computed_in": "bfloat16"}):
        assert layout.hash != type(layout)(**{**fields_of(layout), **change}).hash


def fields_of(layout: Any) -> dict[str, Any]:
    return {name: getattr(layout, name) for name in layout.__dataclass_fields__}


def test_a_checkpoint_without_scales_has_scales_of_one(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    assert kv_scales(tmp_path, range(2)) == ((1.0, 1.0), (1.0, 1.0))


def test_one_scale_of_a_layer_is_that_of_its_keys_and_its_values(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.self_attn.kv_scale"] = torch.tensor([0.5])
    save_file(tensors, tmp_path / "model.safetensors")
    assert kv_scales(tmp_path, range(2)) == ((1.0, 1.0), (0.5, 0.5))


@pytest.mark.parametrize("scale", [torch.tensor([0.0]), torch.tensor([1.0, 1.0]), torch.tensor(torch.nan)])
def test_a_scale_that_is_not_one_positive_number_is_refused(scale: Tensor, tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"model.layers.1.self_attn.k_proj.k_scale": scale}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"layers\.1\.self_attn\.k_proj\.k_scale .* one positive scale"):
        kv_scales(tmp_path, range(2))


def test_a_checkpoint_with_calibrated_kv_alone_is_not_quantized(folder: Path, tmp_path: Path) -> None:
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    config = json.loads((folder / "config.json").read_text())
    quantization = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": scheme}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")

    assert load_model(tmp_path).spec.quantization is None
