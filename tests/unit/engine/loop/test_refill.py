"""An engine whose weights were replaced is as a fresh one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Gguf
from safetensors.torch import load_file, save_file

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.weights import NewWeights, WeightsIdentity
from engine.errors import RefillRefused, WeightsIncomplete
from engine.executor.runner import ModelRunner
from engine.kernels.cpu.library import cpu_kernels
from engine.loop.engine import Engine
from engine.modeling.layers.linear import codes
from engine.parallel import StepChannel, TorchCommunicator
from tests.ranks import together
from tests.unit.engine.engines import KeepPages, make_engine, run
from tests.unit.engine.engines import make_request as fake_request
from tests.unit.engine.kv.tiers.tiered import Tiered
from tests.unit.engine.modeling.loader.test_refill import another, gguf_pair
from tests.unit.tiny import make_config, save_tiny_llama
from worker.tensor_parallel.rank_process import follow

PROMPTS = [[(7 * i + j) % 90 for i in range(30)] for j in range(3)]
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    save_tiny_llama(folder / "old")
    return folder / "old", another(folder / "old", folder / "new")


def answers(engine: Engine, first_id: int = 0) -> list[list[int]]:
    """Tokens of all prompts. They share their prefixes with later calls."""
    requests = [Request(first_id + i, prompt, GREEDY) for i, prompt in enumerate(PROMPTS)]
    run(engine, *requests)
    return [list(request.output) for request in requests]


def hits(engine: Engine) -> int:
    return engine.stats().cache_hit_tokens


@contextmanager
def engine_with(folder: Path, **changes: Any) -> Iterator[Engine]:
    engine = Engine(make_config(folder, **changes))
    yield engine
    engine.close()


@pytest.mark.parametrize("changes", [{}, {"overlap": True}, {"dtype": "bfloat16"}])
def test_no_prefix_of_the_old_weights_is_hit_and_tokens_are_those_of_a_fresh_engine(
    folders: tuple[Path, Path], changes: dict[str, Any]
) -> None:
    old, new = folders
    with engine_with(new, **changes) as fresh, engine_with(old, **changes) as engine:
        expected, before = answers(fresh), answers(engine)
        assert answers(engine, 10) == before
        assert (hit := hits(engine)) > 0

        engine.refill(NewWeights(new))

        assert answers(engine, 20) == expected != before
        assert hits(engine) == hit
        assert engine.weights == fresh.weights
        assert answers(engine, 30) == expected
        assert hits(engine) > hit


def test_a_name_distinguishes_weights_of_one_checkpoint(folders: tuple[Path, Path]) -> None:
    with engine_with(folders[0]) as engine:
        start = engine.weights
        engine.refill(NewWeights(folders[0], "step 1"))

        assert engine.weights == WeightsIdentity(start.checkpoint, "step 1") != start
        assert str(engine.weights) != str(start)


def test_running_requests_and_kept_pages_refuse_new_weights() -> None:
    hooks = KeepPages()
    engine = make_engine(hooks)
    request, new = fake_request(1, [1, 2, 3, 4, 5]), NewWeights(Path("new"))
    engine.submit(request)
    with pytest.raises(RefillRefused, match="no requests"):
        engine.refill(new)
    while engine.has_work:
        engine.step()
    with pytest.raises(RefillRefused, match="pages of KV"):
        engine.refill(new)
    engine.release(request)
    engine.refill(new)
    assert engine.weights.checkpoint == "new"


def test_pages_that_a_peer_may_still_write_refuse_new_weights() -> None:
    engine, new = make_engine(), NewWeights(Path("new"))
    reservation = engine.reserve(fake_request(1, [1, 2, 3, 4, 5]))
    assert reservation is not None
    with pytest.raises(RefillRefused, match="pages of KV"):
        engine.refill(new)
    engine.kv.quarantine(reservation)
    with pytest.raises(RefillRefused, match="pages of KV"):
        engine.refill(new)
    engine.kv.free_reservation(reservation)
    engine.refill(new)


def test_prefixes_that_a_peer_reads_refuse_new_weights() -> None:
    engine, new = make_engine(), NewWeights(Path("new"))
    run(engine, fake_request(1, [*range(20)]))
    shared = engine.kv.peers.share(fake_request(2, [*range(20)]), 0, 16)
    assert shared is not None
    with pytest.raises(RefillRefused, match="pages of KV"):
        engine.refill(new)


def test_kv_of_the_old_weights_does_not_come_up_from_a_tier() -> None:
    tiered = Tiered()
    prompt = [*range(12)]
    for id, tokens in enumerate((prompt, [*range(40, 64)])):
        tiered.answer(fake_request(id, tokens, max_tokens=4))
    promoted = fake_request(2, prompt, max_tokens=4)
    tiered.answer(promoted)
    assert tiered.promoted(promoted)

    tiered.answer(fake_request(3, [*range(40, 64)], max_tokens=4))
    tiered.engine.refill(NewWeights(Path("new")))
    request = fake_request(4, prompt, max_tokens=4)
    tiered.answer(request)

    assert not tiered.promoted(request)
    assert not request.num_cached


def test_a_refused_checkpoint_changes_nothing(folders: tuple[Path, Path], tmp_path: Path) -> None:
    tensors = load_file(folders[1] / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folders[1] / "config.json").read_bytes())
    with engine_with(folders[0]) as engine:
        before, identity = answers(engine), engine.weights
        for folder, reason in (
            (tmp_path, r"missing model\.norm\.weight"),
            (tmp_path / "none", r"no config\.json"),
        ):
            with pytest.raises(RefillRefused, match=reason):
                engine.refill(NewWeights(folder))
        assert answers(engine, 10) == before
        assert hits(engine) > 0
        assert engine.weights == identity


@pytest.mark.skipif(cpu_kernels(torch.float32) is None, reason="the kernels cannot be compiled here")
def test_incomplete_weights_answer_nothing_until_they_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "code_panels_win", lambda dtype, four_bits: True)
    old, new = gguf_pair("llama", Gguf.Q4_0, Gguf.Q8_0, tmp_path)
    with engine_with(old) as engine:
        before = answers(engine)
        with pytest.raises(WeightsIncomplete, match="cannot be filled again"):
            engine.refill(NewWeights(new))
        with pytest.raises(WeightsIncomplete):
            engine.submit(Request(10, PROMPTS[0], GREEDY))

        engine.refill(NewWeights(old))

        assert answers(engine, 20) == before
        assert hits(engine) == 0


def test_all_ranks_replace_their_weights_or_none(folders: tuple[Path, Path], tmp_path: Path) -> None:
    old, new = folders
    with engine_with(new) as fresh:
        expected = answers(fresh)

    def on_rank(ranks: TorchCommunicator) -> list[list[int]]:
        config = make_config(old, tensor_parallel_size=2)
        runner = ModelRunner(config, communicator=ranks)
        if not ranks.shard.is_first_rank:
            follow(StepChannel(ranks), runner)
            return []
        engine = Engine(config, runner=runner)
        before = answers(engine)
        with pytest.raises(RefillRefused, match=r"no config\.json"):
            engine.refill(NewWeights(tmp_path))
        assert answers(engine, 10) == before
        engine.refill(NewWeights(new))
        found = answers(engine, 20)
        engine.close()
        return found

    assert together(2, on_rank)[0] == expected
