"""An encode worker has the vision model of its checkpoint, and not its language model."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from encode_worker.role import EncodeWorker
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.weights import NewWeights
from engine.errors import RefillRefused
from engine.loop.engine import Engine
from engine.modeling.loader.weights_identity import FilledCheckpoint
from tests.unit.engine.media.vlms import FAMILIES, TEXT
from tests.unit.tiny import make_config

LARGE = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6}


def opened(folder: Path, *, encodes: bool) -> Engine:
    config = make_config(folder, num_pages=64, max_model_len=256)
    return Engine(EncodeWorker.engine(config) if encodes else config)


def test_it_holds_a_small_part_of_what_another_worker_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in LARGE.items():
        monkeypatch.setitem(TEXT, name, value)
    FAMILIES["smolvlm"].save(tmp_path)
    vision = sum(
        parameter.nbytes
        for name, parameter in FAMILIES["smolvlm"].make().named_parameters()
        if "vision_model" in name or "connector" in name
    )

    def held(*, encodes: bool) -> int:
        before = _tensor_bytes()
        engine = opened(tmp_path, encodes=encodes)
        grown = _tensor_bytes() - before - engine.runner.kv.memory.nbytes
        engine.close()
        return grown

    whole, part = held(encodes=False), held(encodes=True)
    assert vision <= part < 3 * vision < whole / 10


@pytest.mark.parametrize("name", FAMILIES)
def test_it_encodes_what_the_others_encode(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    family.save(tmp_path)
    engines = [opened(tmp_path, encodes=encodes) for encodes in (False, True)]
    for image in family.images(2):
        whole, part = (engine.runner.media.encode(image.at(0))[0] for engine in engines)
        assert torch.equal(whole, part)


def test_it_answers_what_health_probes_ask(tmp_path: Path) -> None:
    FAMILIES["qwen2.5-vl"].save(tmp_path)
    engine = opened(tmp_path, encodes=True)
    probe = Request(1, list(range(8)), SamplingParams(max_tokens=2, ignore_eos=True, seed=1))
    engine.submit(probe)
    while engine.has_work:
        engine.step()
    assert len(probe.output) == 2
    engine.check_pages()


def test_its_weights_are_those_of_the_whole_checkpoint(tmp_path: Path) -> None:
    family = FAMILIES["smolvlm"]
    (image,) = family.images(1)
    folders = [tmp_path / str(seed) for seed in range(2)]
    for seed, folder in enumerate(folders):
        family.save(folder, seed)
    engine = opened(folders[0], encodes=True)
    before = engine.runner.media.encode(image.at(0))[0]
    assert engine.weights.checkpoint == FilledCheckpoint(folders[0]).digest()
    engine.refill(NewWeights(folders[1], "new"))
    assert engine.weights.checkpoint == FilledCheckpoint(folders[1]).digest()
    after = engine.runner.media.encode(image.at(0))[0]
    assert torch.equal(after, opened(folders[1], encodes=True).runner.media.encode(image.at(0))[0])
    assert not torch.equal(after, before)


def test_it_refuses_weights_of_another_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FAMILIES["smolvlm"].save(tmp_path / "model")
    monkeypatch.setitem(TEXT, "num_hidden_layers", 4)
    FAMILIES["smolvlm"].save(tmp_path / "deeper")
    engine = opened(tmp_path / "model", encodes=True)
    with pytest.raises(RefillRefused, match=r"another model \(num_layers"):
        engine.refill(NewWeights(tmp_path / "deeper", "new"))


def _tensor_bytes() -> int:
    gc.collect()
    tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    return sum(storages.values())
