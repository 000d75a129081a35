"""Images of models that run transformers' modules: tokens are those of transformers, end to end."""

from __future__ import annotations

from typing import Any, Final

import pytest
from transformers import (
    AyaVisionConfig,
    AyaVisionForConditionalGeneration,
    Cohere2VisionConfig,
    Cohere2VisionForConditionalGeneration,
    Glm4vConfig,
    Glm4vForConditionalGeneration,
    PreTrainedModel,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

from engine.model_config.model_impl import ModelImpl
from tests.unit.engine.engines import run
from tests.unit.engine.media.test_images import Served, answers
from tests.unit.engine.media.vlms import (
    FAMILIES,
    PLACEHOLDER,
    TEXT,
    Family,
    Part,
    _along,
    _grids,
    _patches,
    _square,
    request_of,
    without_arrays,
)

_EYE: Final = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_COMMAND: Final = TEXT | {"model_type": "cohere2", "sliding_window": 7, "logit_scale": 1.0}
_TOKENS: Final = {"image_token_id": PLACEHOLDER, "video_token_id": 94, "vision_start_token_id": 91}


def _aya() -> PreTrainedModel:
    config = AyaVisionConfig(
        text_config=_COMMAND,
        vision_config=_EYE | {"model_type": "siglip_vision_model", "image_size": 32, "patch_size": 8},
        image_token_index=PLACEHOLDER,
        downsample_factor=2,
        tie_word_embeddings=False,
    )
    return AyaVisionForConditionalGeneration(config)


def _cohere2() -> PreTrainedModel:
    config = Cohere2VisionConfig(
        text_config=_COMMAND,
        vision_config=_EYE | {"model_type": "siglip_vision_model", "image_size": 32, "patch_size": 8},
        image_token_id=PLACEHOLDER,
        downsample_factor=2,
        alignment_intermediate_size=32,
        tie_word_embeddings=False,
    )
    return Cohere2VisionForConditionalGeneration(config)


def _qwen2_vl() -> PreTrainedModel:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}
    text = {name: value for name, value in TEXT.items() if name != "head_dim"}
    eye = {"depth": 2, "embed_dim": 16, "num_heads": 2, "hidden_size": 48, "patch_size": 4, "mlp_ratio": 2}
    config = Qwen2VLConfig(
        text_config=text | {"rope_parameters": rope}, vision_config=eye, tie_word_embeddings=False, **_TOKENS
    )
    return Qwen2VLForConditionalGeneration(config)


def _glm4v() -> PreTrainedModel:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    text = TEXT | {"rope_parameters": rope | {"partial_rotary_factor": 0.5}}
    eye = {"depth": 2, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 48, "intermediate_size": 16}
    config = Glm4vConfig(
        text_config=text,
        vision_config=eye | {"patch_size": 4, "image_size": 32},
        tie_word_embeddings=False,
        **_TOKENS,
    )
    return Glm4vForConditionalGeneration(config)


GENERAL: Final = {
    "aya vision": Family(_aya, _square(4, 32, 1), _along(0)),
    "command a vision": Family(_cohere2, _square(4, 32, 1), _along(0)),
    "glm4v": Family(_glm4v, _patches, _grids, "mm_token_type_ids"),
    "qwen2-vl": Family(_qwen2_vl, _patches, _grids, "mm_token_type_ids"),
} | {name: FAMILIES[name] for name in ("smolvlm", "gemma3", "qwen2.5-vl", "mistral3")}


class _Transformers(Served):
    def engine(self, **settings: Any) -> Any:
        return super().engine(model_impl=ModelImpl.TRANSFORMERS, **settings)


@pytest.fixture(scope="module", params=GENERAL)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder, family = tmp_path_factory.mktemp("vlm"), GENERAL[request.param]
    return _Transformers(folder, family.save(folder), family)


@pytest.mark.parametrize("budget", [1, 5, 64])
def test_the_answer_is_that_of_transformers_for_every_chunk_size(served: Served, budget: int) -> None:
    red, blue = served.family.images(2)
    parts: list[Part] = [[3, 4, 5], red, [6, 7, 8, 9], blue, blue, [10]]
    budget = max(budget, served.family.least)
    engine = served.engine(chunk_budget=budget, page_aligned_chunks=False)
    assert answers(engine, parts) == [served.expected(parts)]
    engine.close()


def test_another_image_has_another_answer_and_a_cached_one_needs_no_pixels(served: Served) -> None:
    red, blue = served.family.images(2)
    prompts: list[list[Part]] = [[[3, 4, 5], image, [6, 7, 8, 9, 10]] for image in (red, blue)]
    engine = served.engine()
    apart = [answers(engine, parts)[0] for parts in prompts]
    assert apart == [served.expected(parts) for parts in prompts]
    assert apart[0] != apart[1]
    later = without_arrays(request_of(9, prompts[0]))
    run(engine, later)
    assert later.output == apart[0]
    assert (later.num_cached or 0) >= 3 + len(red.tokens)
    engine.close()
