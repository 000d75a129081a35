"""Fields of a model whose family Baton has, from its config.json."""

from __future__ import annotations

from typing import Any

from engine.model_config.architectures import ARCHITECTURES, architecture_of
from engine.model_config.config_fields import Config
from engine.model_config.config_file import TextFields, dtype_of, eos_token_ids, of_the_text
from engine.model_config.errors import UnsupportedModel
from engine.model_config.families.class_defaults import filled
from engine.model_config.families.vision import vision_of
from engine.model_config.parts.layer_options import Head
from engine.model_config.quantization_config import read_quantization


def family_fields(config: Config, generation: Config) -> dict[str, Any]:
    """Fields of `ModelSpec` of a model that runs a family's modules. Raises UnsupportedModel."""
    architecture, head = architecture_of(config)
    known = ARCHITECTURES[architecture]
    within = (config.get("text_config") or {}).get("model_type") if known.text_types else None
    shape = TextFields(filled(of_the_text(config), within or known.model_type))
    try:
        fields = {"vocab_size": shape["vocab_size"], **known.read(shape)}
        if head is not Head.VOCABULARY:
            fields |= {"head": head, "labels": _labels(config) if head is Head.LABELS else ()}
        return dict(
            architecture=architecture,
            eos_token_ids=eos_token_ids(shape, generation),
            dtype=dtype_of(shape),
            quantization=read_quantization({**config, **shape}),
            vision=vision_of(config),
            **fields,
        )
    except KeyError as field:
        raise UnsupportedModel(f"config.json of this {architecture} lacks {field}") from field


def _labels(config: Config) -> tuple[str, ...]:
    """In the order of a classifier's scores."""
    names = config.get("id2label") or {}
    count = len(names) or int(config.get("num_labels", 2))
    return tuple(str(names.get(str(index), f"LABEL_{index}")) for index in range(count))
