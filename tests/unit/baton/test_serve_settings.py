"""Arguments of `ray.serve.llm` as settings of the router."""

from __future__ import annotations

from typing import Any

import pytest

from baton.serve_settings import settings_of
from router.config.flags.command_line import configs_of

LOADING = {"model_id": "small", "model_source": "smollm2"}


def llm(**fields: Any) -> dict[str, Any]:
    return {"llm_configs": [{"model_loading_config": LOADING, **fields}]}


def test_the_config_of_a_model_becomes_its_settings() -> None:
    settings = settings_of(
        llm(
            accelerator_type="H100",
            engine_kwargs={"max_num_seqs": 16, "tensor_parallel_size": 2, "mode": "disagg"},
            deployment_config={"autoscaling_config": {"min_replicas": 2, "max_replicas": 4}},
        )
        | {"max_model_len": 512}
    )

    (config,) = configs_of(settings)
    assert (config.served_model_name, config.model, config.accelerator) == ("small", "smollm2", "H100")
    assert (config.max_running_requests, config.tensor_parallel_size, config.max_model_len) == (16, 2, 512)
    assert (config.decode_workers, config.cluster.autoscale) == (2, "decode=2:4")


def test_settings_of_the_router_are_taken_as_from_a_file() -> None:
    (config,) = configs_of(settings_of({"model": "smollm2", "decode-workers": 2}))
    assert (config.model, config.decode_workers) == ("smollm2", 2)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (llm(lora_config={}), "small: lora_config is not supported"),
        (llm(deployment_config={"max_ongoing_requests": 3}), "deployment_config.max_ongoing_requests is not"),
        (llm(engine_kwargs={"no_such": 1}), "no_such is not a setting"),
        ({"llm_configs": [{}]}, "model_id is missing"),
        ({"model": "m", "http-port": 1}, "http-port is not a setting under Ray Serve"),
        ({"model": "m", "page-size": 0}, "--page-size 0"),
    ],
)
def test_what_means_nothing_here_is_refused_by_name(args: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        settings_of(args)
