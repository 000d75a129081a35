"""New weights as tensors: in a body, in several, or in a file; all of them or some."""

from __future__ import annotations

import base64
import pickle
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from router.api.access import Access, ApiKeys
from router.config.choices import Mode, UpdateMode
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel

KEY = "an-admin-key-of-a-test"
ADMIN = {"authorization": f"Bearer {KEY}"}
PROMPT = list(range(5, 75))
LEFT = 2
"""Folders of workers: the served one, and one before that."""
DOCUMENT: dict[str, Any] = {}
"""/openapi.json, which is the same for all of them, and takes seconds to make."""
NAME = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture(params=[(Mode.MIXED, 2), (Mode.DISAGG, 1)], ids=str)
async def cluster(small: SmallModel, request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    access = Access(admin_keys=ApiKeys({KEY: "trainer"}))
    mode, each = request.param
    async with local_cluster(small, mode, access=access, each=each) as running:
        yield running
        await running.all_pages_back()
        assert not running.deaths


def changed(small: SmallModel, seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    values = load_file(small.folder / "model.safetensors")
    return {name: value + 0.3 * torch.randn_like(value) for name, value in values.items()}


def answer_with(small: SmallModel, tensors: dict[str, Tensor], folder: Path) -> list[int]:
    """What transformers says with the model's tensors, but these."""
    shutil.copytree(small.folder, folder)
    values = load_file(folder / "model.safetensors") | tensors
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    return continued(type(small.model).from_pretrained(folder).eval(), PROMPT, 8)


@torch.no_grad()
def continued(model: Any, tokens: Sequence[int], count: int) -> list[int]:
    answer: list[int] = []
    for _ in range(count):
        answer.append(int(model(torch.tensor([[*tokens, *answer]])).logits[0, -1].argmax()))
    return answer


def encoded(tensors: dict[str, Tensor]) -> str:
    return base64.b64encode(save(tensors)).decode()


def files(place: Path) -> int:
    (router,) = place.glob("baton-tensors-*")
    return len(list(router.iterdir()))


def folders(place: Path) -> list[Path]:
    return [path.parent for path in place.glob("baton-weights-*/*/*/new.safetensors")]


def forget_folders(place: Path) -> None:
    """As if the worker came back on another machine."""
    for made in place.glob("baton-weights-*/*"):
        shutil.rmtree(made)


async def post(cluster: LocalCluster, path: str, content: Any, status: int = 200) -> Any:
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60.0, headers=ADMIN) as client:
        answer = await client.post(path, json=content)
        assert answer.status_code == status, answer.text
        document = DOCUMENT or (await client.get("/openapi.json")).json()
        DOCUMENT.update(document)
    if status == 200 and path in document["paths"]:
        described = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]
        jsonschema.validate(answer.json(), {**described["schema"], "components": document["components"]})
    return answer.json()


async def ask(cluster: LocalCluster) -> list[int]:
    sampling = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
    body = {"token_ids": PROMPT, "sampling_params": sampling}
    answer = await post(cluster, "/inference/v1/generate", body)
    return list(answer["choices"][0]["token_ids"])


async def test_all_tensors_in_a_body_then_some_of_them_in_phases_and_in_a_file(
    cluster: LocalCluster, small: SmallModel, tmp_path: Path
) -> None:
    whole, part, file = changed(small, 1), changed(small, 2), changed(small, 3)
    body = {"serialized_named_tensors": [encoded(whole)], "weight_version": "1"}
    done = await post(cluster, "/update_weights_from_tensor", body)
    assert (done["weight_version"], done["success"]) == ("1", True)
    assert await ask(cluster) == answer_with(small, whole, tmp_path / "whole")

    names = sorted(part)[:3]
    await post(cluster, "/init_weight_transfer_engine", {"init_info": {}})
    await post(cluster, "/start_weight_update", {})
    for name in names:
        info = {"update_info": {"tensors": encoded({name: part[name]})}}
        assert await post(cluster, "/update_weights", info) == {"status": "received"}
    assert await ask(cluster) == answer_with(small, whole, tmp_path / "still")
    assert (await post(cluster, "/finish_weight_update", {"weight_version": "2"}))["weight_version"] == "2"
    second = whole | {name: part[name] for name in names}
    assert await ask(cluster) == answer_with(small, second, tmp_path / "part")

    save_file({NAME: file[NAME]}, tmp_path / "some.safetensors")
    info = {"update_info": {"tensors_file": str(tmp_path / "some.safetensors")}}
    await post(cluster, "/update_weights", info)
    (tmp_path / "some.safetensors").unlink()
    assert await ask(cluster) == answer_with(small, second | {NAME: file[NAME]}, tmp_path / "file")

    await post(cluster, "/update_weights_from_disk", {"model_path": str(small.folder)})
    assert await ask(cluster) == continued(small.model, PROMPT, 8)
    only = {NAME: file[NAME]}
    await post(cluster, "/update_weights_from_tensor", {"serialized_named_tensors": [encoded(only)]})
    assert await ask(cluster) == answer_with(small, only, tmp_path / "only")
    assert files(tmp_path) == 1, "tensors of earlier updates are kept"
    assert len(folders(tmp_path)) <= LEFT


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"model.no_such.weight": torch.zeros(1)}, "has no tensors model.no_such.weight"),
        ({NAME: torch.zeros(2, 3)}, "has the shape [2, 3]"),
    ],
)
async def test_tensors_that_do_not_fit_leave_the_old_weights_serving(
    cluster: LocalCluster, small: SmallModel, tensors: dict[str, Tensor], said: str
) -> None:
    body = {"serialized_named_tensors": [encoded(tensors)]}
    error = (await post(cluster, "/update_weights_from_tensor", body, 503))["error"]
    assert error["code"] == "update_failed"
    assert said in error["message"]
    assert await ask(cluster) == continued(small.model, PROMPT, 8)


async def test_a_worker_that_comes_later_gets_the_tensors(small: SmallModel, tmp_path: Path) -> None:
    access, whole = Access(admin_keys=ApiKeys({KEY: "trainer"})), changed(small, 1)
    async with local_cluster(
        small, Mode.MIXED, access=access, each=2, update_mode=UpdateMode.TOGETHER
    ) as cluster:
        await post(cluster, "/update_weights_from_tensor", {"serialized_named_tensors": [encoded(whole)]})
        forget_folders(tmp_path)
        (session, _) = cluster.registry.sessions()
        session.info.served.Clear()
        await cluster.weights._replace(session, cluster.weights.served)
        assert folders(tmp_path)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (
            "/update_weights_from_tensor",
            {"serialized_named_tensors": [base64.b64encode(pickle.dumps({})).decode()]},
            "pickle",
        ),
        ("/update_weights_from_tensor", {"serialized_named_tensors": ["?"]}, "base64"),
        ("/update_weights_from_tensor", {"serialized_named_tensors": ["AAAA"]}, "safetensors file ends"),
        ("/update_weights_from_tensor", {"serialized_named_tensors": [encoded({})]}, "no tensors"),
        ("/update_weights", {"update_info": {"tensors_file": "/none"}}, "No such file"),
        ("/update_weights", {"update_info": {"names": ["a"]}}, "process group"),
        ("/update_weights", {"update_info": {}}, "One of model_path"),
        ("/init_weight_transfer_engine", {"init_info": {"master_address": "10.0.0.1"}}, "process group"),
        ("/finish_weight_update", {}, "/start_weight_update"),
    ],
)
async def test_what_cannot_be_taken_is_refused_by_name(
    small: SmallModel, path: str, body: dict[str, Any], said: str
) -> None:
    access = Access(admin_keys=ApiKeys({KEY: "trainer"}))
    async with local_cluster(small, Mode.MIXED, access=access) as cluster:
        error = (await post(cluster, path, body, 400))["error"]
        assert said in error["message"]
        assert await ask(cluster) == continued(small.model, PROMPT, 8)


async def test_with_rl_alone_trainers_need_no_key(small: SmallModel) -> None:
    for access, status in (
        (Access(rl=True), 200),
        (Access(), 403),
        (Access(admin_keys=ApiKeys({KEY: "a"}), rl=True), 401),
    ):
        async with (
            local_cluster(small, Mode.MIXED, access=access) as cluster,
            httpx.AsyncClient(base_url=cluster.url) as client,
        ):
            assert (await client.post("/pause")).status_code == status
