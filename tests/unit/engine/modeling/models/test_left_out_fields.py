"""Fields that config.json leaves out, or states as null, mean what they mean to transformers' class."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING

from engine.model_config.architectures import ARCHITECTURES
from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_impl import ModelImpl
from engine.model_config.model_spec import ModelSpec

_OF_DECODERS: Final = {
    name: (known.model_type, None)
    for name, known in ARCHITECTURES.items()
    if name.endswith(("ForCausalLM", "LMHeadModel")) and known.model_type in CONFIG_MAPPING
}
_NESTED: Final = {
    f"{name} of {inner}": (known.model_type, inner)
    for name, known in ARCHITECTURES.items()
    for inner in sorted(known.text_types)
}
_NEEDED: Final[dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 16},
}
"""What the default of a class lacks."""
_NO_COMPUTATION: Final = frozenset({"model_type", "eos_token_id", "num_nextn_predict_layers"})
"""Fields that decide which class it is, where an answer ends, and whether a checkpoint has a head besides."""


def _as_json(model_type: str, fields: dict[str, Any]) -> dict[str, Any]:
    """What transformers writes for a config that states `fields`."""
    written: dict[str, Any] = json.loads(
        json.dumps(CONFIG_MAPPING[model_type].from_dict({**fields}).to_dict(), default=str)
    )
    return written


def _read(config: dict[str, Any], wrapper: str | None) -> ModelSpec | None:
    """None: refused."""
    if wrapper is not None:
        name = next(name for name, known in ARCHITECTURES.items() if known.model_type == wrapper)
        outer = {"architectures": [name], "model_type": wrapper, "tie_word_embeddings": False}
        config = outer | {"text_config": config}
    try:
        return ModelSpec.from_config(config, impl=ModelImpl.BATON)
    except UnsupportedModel:
        return None


@pytest.mark.parametrize("name", [*_OF_DECODERS, *_NESTED])
def test_a_field_that_is_left_out_or_null_has_the_default_of_the_class_or_is_refused(name: str) -> None:
    outer, inner = {**_OF_DECODERS, **_NESTED}[name]
    model_type, wrapper = (outer, None) if inner is None else (inner, outer)
    whole = _as_json(model_type, _NEEDED.get(model_type, {}))
    assert _read(whole, wrapper) is not None

    differing = []
    for field in sorted(set(whole) - _NO_COMPUTATION):
        without = {key: value for key, value in whole.items() if key != field}
        for written in (without, {**without, field: None}):
            try:
                expected = _as_json(model_type, written)
            except (TypeError, ValueError, AttributeError, StrictDataclassError):
                continue  # transformers refuses it
            found = _read(written, wrapper)
            if found is not None and found != _read(expected, wrapper):
                differing.append((field, "null" if field in written else "left out"))
    assert not differing


@pytest.mark.parametrize(
    ("model_type", "window"), [("mistral", 4096), ("gemma3_text", 4096), ("ministral", 4096)]
)
def test_a_window_that_is_left_out_is_that_of_the_class_and_null_is_none(
    model_type: str, window: int
) -> None:
    whole = _as_json(model_type, {})
    del whole["sliding_window"]

    left_out, null = _read(whole, None), _read({**whole, "sliding_window": None}, None)

    assert left_out is not None
    assert null is not None
    assert window in left_out.attention.windows
    assert null.attention.windows == ()
