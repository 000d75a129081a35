"""Images on a GPU: in float32 as transformers; in bfloat16, graphs and overlap change no token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from encode_worker.role import EncodeWorker
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from tests.gpu.driving import gpu_config
from tests.unit.engine.media.vlms import FAMILIES, TEXT, Part, request_of

MAX_TOKENS = 24


def answers(folder: Path, prompts: Sequence[list[Part]], **settings: object) -> list[list[int]]:
    engine = Engine(gpu_config(folder, **settings))
    requests = [request_of(number, parts, MAX_TOKENS) for number, parts in enumerate(prompts, 1)]
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        engine.step()
        engine.check_pages()
    engine.close()
    return [request.output for request in requests]


def prompts_of(name: str) -> list[list[Part]]:
    red, blue = FAMILIES[name].images(2)
    return [[[3, 4, 5], red, [6, 7]], [[3, 4, 5], blue, [6, 7]], [[3], blue, [9], red, [8] * 40]]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_in_float32_answers_equal_transformers(name: str, overlap: bool, tmp_path: Path) -> None:
    family = FAMILIES[name]
    model, prompts = family.save(tmp_path), prompts_of(name)
    config: dict[str, object] = {
        "dtype": "float32",
        "attention_backend": "torch",
        "chunk_budget": 16,
        "overlap": overlap,
    }
    assert answers(tmp_path, prompts, **config) == [
        family.expected(model, parts, MAX_TOKENS) for parts in prompts
    ]


@pytest.mark.parametrize(("graphs", "tokens"), [(8, 0), (4, 64)])
@pytest.mark.parametrize("name", ["smolvlm", "gemma3", "qwen3-vl", "mistral3"])
def test_graphs_and_overlap_change_no_token_in_bfloat16(
    name: str, graphs: int, tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TEXT, "head_dim", 64)  # for which there are kernels
    FAMILIES[name].save(tmp_path)
    plain = answers(tmp_path, prompts_of(name), chunk_budget=64, overlap=False)
    config: dict[str, object] = {
        "cuda_graph_max_batch": graphs,
        "cuda_graph_max_tokens": tokens,
        "overlap": True,
    }
    assert answers(tmp_path, prompts_of(name), chunk_budget=64, **config) == plain


@pytest.mark.alone
def test_the_memory_of_images_is_set_aside_before_the_pool_is_sized(tmp_path: Path) -> None:
    FAMILIES["qwen2.5-vl"].save(tmp_path)
    pages = []
    for more in ({}, {"image_cache_bytes": 2 << 30}, {"language_model_only": True}):
        engine = Engine(
            gpu_config(
                tmp_path,
                num_pages=0,
                kv_memory_fraction=0.2,
                max_model_len=512,
                attention_backend="torch",
                **more,
            )
        )
        pages.append(engine.runner.num_pages)
        engine.close()
        torch.cuda.empty_cache()
    usual, larger, without = pages
    assert larger < usual < without


@pytest.mark.parametrize("name", ["qwen2.5-vl", "smolvlm"])
def test_an_encode_worker_encodes_as_others_and_answers_probes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TEXT, "head_dim", 64)  # for which there are kernels
    family = FAMILIES[name]
    family.save(tmp_path)
    whole = gpu_config(tmp_path)
    engines = [Engine(config) for config in (whole, EncodeWorker.engine(whole))]
    encoders = [engine.runner.media for engine in engines]
    for image in family.images(2):
        rows = [encoder.encode(image.at(0))[0] for encoder in encoders]
        torch.testing.assert_close(rows[0], rows[1])
    probe = Request(1, list(range(8)), SamplingParams(max_tokens=2, ignore_eos=True, seed=1))
    engines[1].submit(probe)
    while engines[1].has_work:
        engines[1].step()
    assert len(probe.output) == 2
    for engine in engines:
        engine.close()
