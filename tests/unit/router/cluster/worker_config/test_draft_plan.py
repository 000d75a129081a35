"""What a worker is told of states and of models that draft."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.modeling.loader.checkpoint import Checkpoint
from engine.speculation.kinds import DrafterKind, Speculation
from router.cluster.worker_config.machine import Machine, PlanError
from router.config.choices import Dtype
from tests.unit.router.cluster.worker_config.models import CPU, gpu, plan, write_model

STATES = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention"],
}


def test_slots_for_states_leave_less_memory_to_pages(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | STATES))
    machine = replace(CPU, memory_bytes=64 << 20)

    def pool(slots: int) -> int:
        checkpoint = Checkpoint(folder, "tiny")
        worker = plan(checkpoint, machine, state_slots=slots, kv_memory_fraction=0.9, dtype=Dtype.FLOAT32)
        assert worker.engine.num_state_slots == slots
        return worker.engine.num_pages * worker.engine.page_size

    state = 4 * (4 * 16 * 16 + (2 * 2 * 16 + 4 * 16) * 3)
    token = 4 * 2 * 2 * 16  # one layer with attention
    assert abs(pool(100) - pool(1100) - 1000 * state / token) <= 16


@pytest.mark.parametrize("machine", [CPU, gpu(141)])
def test_predictions_are_drafted_by_default_without_memory_for_drafts(
    checkpoint: Checkpoint, machine: Machine
) -> None:
    engine = plan(checkpoint, machine).engine
    speculation = engine.scheduler.speculation
    assert speculation is not None
    assert speculation.drafters == {DrafterKind.PREDICTION}
    plain = plan(checkpoint, machine, speculative=Speculation.OFF).engine
    assert plain.scheduler.speculation is None
    for planned in (engine, plain):
        assert planned.max_decode_rows == planned.scheduler.max_running_requests
    assert engine.max_edited_drafts == plain.max_edited_drafts
    asked = plan(checkpoint, machine, speculative=Speculation.PREDICTION).engine
    assert asked.max_decode_rows > plain.max_decode_rows


def test_predictions_for_a_model_with_states_are_drafted_if_the_operator_asks(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | STATES))
    checkpoint = Checkpoint(folder, "tiny")
    assert plan(checkpoint).engine.scheduler.speculation is None
    asked = plan(checkpoint, speculative=Speculation.PREDICTION).engine.scheduler.speculation
    assert asked is not None


def test_a_draft_model_must_have_the_same_tokens(checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    folder = write_model(tmp_path / "small")
    for model, vocab in ((checkpoint.path, {"a": 0}), (folder, {"a": 0, "b": 1})):
        (model / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
    asked = {"speculative": Speculation.MODEL, "speculative_model": str(folder)}
    with pytest.raises(PlanError, match="does not have the tokens of"):
        plan(checkpoint, **asked)
    (folder / "tokenizer.json").write_text((checkpoint.path / "tokenizer.json").read_text())
    speculation = plan(checkpoint, **asked).engine.scheduler.speculation
    assert speculation is not None
    assert speculation.model_path == folder


def test_a_head_in_the_checkpoint_drafts_if_the_model_has_one(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"--speculative mtp: this Llama.* has no head"):
        plan(checkpoint, speculative=Speculation.MTP)
    folder = write_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | STATES))
    speculation = plan(Checkpoint(folder, "tiny"), speculative=Speculation.MTP).engine.scheduler.speculation
    assert speculation is not None
    assert speculation.mtp


def test_an_eagle_head_needs_no_tokenizer_but_its_own_model(checkpoint: Checkpoint, tmp_path: Path) -> None:
    config = json.loads((checkpoint.path / "config.json").read_text())
    head = config | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 0, 1]},
    }
    folder = tmp_path / "head"
    folder.mkdir()
    asked = {"speculative": Speculation.MODEL, "speculative_model": str(folder)}
    (folder / "config.json").write_text(json.dumps(head))
    speculation = plan(checkpoint, **asked).engine.scheduler.speculation
    assert speculation is not None
    assert speculation.model_path == folder
    (folder / "config.json").write_text(json.dumps(head | {"vocab_size": 5}))
    with pytest.raises(PlanError, match="use a head of this model"):
        plan(checkpoint, **asked)
    with pytest.raises(PlanError, match="head is an EAGLE-3 head"):
        plan(Checkpoint(folder, "head"))
