"""A worker is killed under requests of more adapters than it keeps; each answer is its adapter's."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.faults.support.service import Service, serve
from tests.faults.support.small_model import SmallModel
from tests.unit.engine.adapters.peft_oracle import greedy, merged, prompts, save_adapter

pytestmark = [pytest.mark.timeout(600), pytest.mark.alone]

LENGTH = 24
ROUNDS = 4


@dataclass(frozen=True)
class Asked:
    model: str
    prompt: Sequence[int]
    right: str


def questions(small: SmallModel, adapters: dict[str, Path | None]) -> list[Asked]:
    """The same prompts for the base model and every adapter, with what PEFT's merged models say."""
    vocab = small.model.config.vocab_size
    asked: list[Asked] = []
    for name, adapter in adapters.items():
        model = merged(small.folder, adapter)
        asked += [
            Asked(name, prompt, small.text(greedy(model, prompt, LENGTH)))
            for prompt in prompts(3, 150, vocab)
        ]
    return asked


async def answer(http: httpx.AsyncClient, asked: Asked) -> str:
    body = {"model": asked.model, "prompt": list(asked.prompt), "max_tokens": LENGTH, "temperature": 0.0}
    answered = await http.post("/v1/completions", json=body | {"ignore_eos": True})
    assert answered.status_code == 200, answered.text
    text: str = answered.json()["choices"][0]["text"]
    return text


async def ask_all(service: Service, asked: Sequence[Asked], rounds: int = 1) -> None:
    async with httpx.AsyncClient(base_url=service.url, timeout=120) as http:
        for _ in range(rounds):
            found = await asyncio.gather(*(answer(http, each) for each in asked))
            wrong = [each.model for each, text in zip(asked, found, strict=True) if text != each.right]
            assert not wrong


@pytest.mark.parametrize("mode", ["disagg", "mixed"])
async def test_answers_are_those_of_their_adapters_while_a_worker_is_killed(
    small: SmallModel, tmp_path: Path, mode: str
) -> None:
    folders = {f"style{k}": save_adapter(small.folder, tmp_path / f"style{k}", k, r=4) for k in range(3)}
    asked = questions(small, {small.folder.name: None, **folders})
    assert len({each.right for each in asked}) == len(asked), "the adapters change nothing"
    flags = ["--enable-lora", "--max-loras", "2", "--max-cpu-loras", "2", "--served-model-name"]
    flags += [small.folder.name, "--lora-modules", " ".join(f"{n}={path}" for n, path in folders.items())]
    number = 0 if mode == "mixed" else 1
    with serve(small, tmp_path / "log", *flags, mode=mode, prefill_workers=number) as service:
        await ask_all(service, asked)
        loading = asyncio.create_task(ask_all(service, asked, ROUNDS))
        await asyncio.sleep(0.3)
        service.workers("decode")[0].kill()
        await loading
        await service.all_workers_up()
        await ask_all(service, asked)
        await service.all_pages_back()
        assert "style" in await service.operate("workers")


async def test_workers_that_start_again_get_adapters_from_others_when_no_folder_is_left(
    small: SmallModel, tmp_path: Path
) -> None:
    """Each is killed in its turn: in the end all have adapters that none of them has read from a folder."""
    folders = {f"style{k}": save_adapter(small.folder, tmp_path / f"style{k}", k, r=4) for k in range(2)}
    asked = questions(small, {small.folder.name: None, **folders})
    flags = ["--enable-lora", "--max-loras", "2", "--max-cpu-loras", "2", "--served-model-name"]
    flags += [small.folder.name, "--lora-modules", " ".join(f"{n}={path}" for n, path in folders.items())]
    with serve(small, tmp_path / "log", *flags, mode="mixed", prefill_workers=0, decode_workers=3) as service:
        await ask_all(service, asked)
        for folder in folders.values():
            shutil.rmtree(folder)
        for worker in service.workers("decode"):
            loading = asyncio.create_task(ask_all(service, asked, ROUNDS))
            await asyncio.sleep(0.3)
            worker.kill()
            await loading
            await service.all_workers_up()
            await _have_loaded(service, 3 * len(folders))
        await ask_all(service, asked)
        await service.all_pages_back()


async def _have_loaded(service: Service, count: int) -> None:
    async with asyncio.timeout(60):
        while await service.total("baton_adapter_loaded") < count:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
