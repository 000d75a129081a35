"""Plans of encode workers, and models for which there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.model_config.pooling_spec import Convert
from engine.modeling.loader.checkpoint import Checkpoint
from router.cluster.worker_config.machine import PlanError
from router.cluster.worker_config.worker_plan import plan_workers
from router.config.choices import Mode
from router.config.table import configured
from tests.unit.engine.media.vlms import FAMILIES
from tests.unit.router.cluster.worker_config.models import CPU, write_model
from worker.config import WorkerRole


def test_encode_workers_come_last_and_take_no_part_in_handoffs(tmp_path: Path) -> None:
    FAMILIES["smolvlm"].save(tmp_path)
    config = configured({"model": "m", "mode": Mode.DISAGG, "encode_workers": 2})
    plans = [plan.config for plan in plan_workers(config, Checkpoint(tmp_path, "m"), CPU)]
    assert [plan.worker_id for plan in plans] == ["prefill-0", "decode-0", "encode-0", "encode-1"]
    assert [plan.transport is None for plan in plans] == [False, False, True, True]
    assert all(plan.role is WorkerRole.ENCODE for plan in plans[2:])
    assert all(plan.identify_weights for plan in plans)
    assert plans[2].engine.num_pages < plans[1].engine.num_pages
    assert config.num_ranks == 4


def test_an_encode_worker_has_one_rank_and_the_vision_model_alone(tmp_path: Path) -> None:
    FAMILIES["smolvlm"].save(tmp_path)
    config = configured({"model": "m", "tensor_parallel_size": 2, "encode_workers": 1})
    decode, encode = plan_workers(config, Checkpoint(tmp_path, "m"), CPU)
    assert (decode.ranks, encode.ranks) == (2, 1)
    engines = decode.config.engine, encode.config.engine
    assert [engine.vision_model_only for engine in engines] == [False, True]


def test_encode_workers_of_a_model_without_images_are_refused(tmp_path: Path) -> None:
    config = configured({"model": "m", "encode_workers": 1})
    with pytest.raises(PlanError, match=r"--encode-workers: m takes no images: .* model of text"):
        plan_workers(config, Checkpoint(write_model(tmp_path), "m"), CPU)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"language_model_only": True}, "--language-model-only"),
        ({"convert": Convert.EMBED}, "vectors"),
    ],
)
def test_encode_workers_are_refused_where_images_are(
    tmp_path: Path, settings: dict[str, object], reason: str
) -> None:
    FAMILIES["smolvlm"].save(tmp_path)
    config = configured({"model": "m", "encode_workers": 1, **settings})
    with pytest.raises(PlanError, match=rf"--encode-workers: m takes no images: .*{reason}"):
        plan_workers(config, Checkpoint(tmp_path, "m"), CPU)
