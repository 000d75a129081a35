"""Clients of trainers, as published, through three steps with new weights: see `make test-clients`."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from router.api.access import Access
from router.config.choices import Mode
from tests.clients.test_clients import ENVIRONMENT, HERE
from tests.clients.trainer_steps import COUNT, PROMPT, STEPS
from tests.faults.support.local_cluster import local_cluster
from tests.faults.support.small_model import SmallModel, save_small_model

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    return save_small_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("mode", [Mode.MIXED, Mode.DISAGG])
@pytest.mark.parametrize("client", ["skyrl", "trl", "verl"])
async def test_three_steps_answer_as_transformers_does_with_the_weights_of_each(
    small: SmallModel, client: str, mode: Mode, tmp_path: Path
) -> None:
    python = ENVIRONMENT / "trainers" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{python} is missing: run make test-clients")
    right = [continued(small.model)]
    values = load_file(small.folder / "model.safetensors")
    for number in range(1, STEPS + 1):
        torch.manual_seed(number)
        values = {name: value + 0.2 * torch.randn_like(value) for name, value in values.items()}
        save_file(values, tmp_path / f"step-{number}.safetensors", metadata={"format": "pt"})
        model = type(small.model)(small.model.config).eval()
        model.load_state_dict(values, strict=False)
        right.append(continued(model))
    assert len({tuple(answer) for answer in right}) == len(right)
    async with local_cluster(
        small, mode, access=Access(rl=True), each=2 if mode is Mode.MIXED else 1
    ) as cluster:
        program = HERE / "trainer_steps.py"
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        running = await asyncio.create_subprocess_exec(
            python,
            program,
            client,
            cluster.url,
            tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=variables | {"SKYRL_GENERATE_CONCURRENCY_PER_ENGINE": "8"},
        )
        out, said = await running.communicate()
        assert running.returncode == 0, (out + said).decode()[-3000:]
        assert json.loads(out.splitlines()[-1]) == right
        await cluster.all_pages_back()


@torch.no_grad()
def continued(model: Any) -> list[int]:
    answer: list[int] = []
    for _ in range(COUNT):
        answer.append(int(model(torch.tensor([[*PROMPT, *answer]])).logits[0, -1].argmax()))
    return answer
