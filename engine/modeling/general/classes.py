"""Finds the class of transformers for a config, and builds it without weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final

import torch
import transformers
from torch import nn
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from engine.model_config.errors import UnsupportedModel

BUILDING: Final = Lock()
"""To be held while transformers makes a model: it replaces functions of its classes and of torch meanwhile.
A second thread would put back what it found, so that embeddings of later models were never tied."""


def config_of(fields: Mapping[str, Any]) -> PreTrainedConfig:
    """The config of transformers for a parsed config.json. Raises UnsupportedModel."""
    model_type = str(fields.get("model_type"))
    if model_type not in CONFIG_MAPPING:
        raise UnsupportedModel(
            f"model_type {model_type!r} is not in transformers {transformers.__version__}; code of"
            " checkpoints is not run"
        )
    return CONFIG_MAPPING[model_type].from_dict({**fields})


def class_of(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The generating class of a config. Raises UnsupportedModel."""
    mappings = (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    generating = {name for mapping in mappings for name in mapping.values()}
    by_type = [mapping[config.model_type] for mapping in mappings if config.model_type in mapping]
    named = [name for name in config.architectures or () if name in generating]
    for name in (*named, *by_type):
        if hasattr(transformers, name):
            found: type[PreTrainedModel] = getattr(transformers, name)
            return found
    raise UnsupportedModel(
        f"transformers has no class for model_type {config.model_type} that generates text"
    )


def build(config: PreTrainedConfig, attention: str, experts: str) -> PreTrainedModel:
    """The model of `config`, with parameters on the meta device and buffers on torch's current one."""
    made = type(config).from_dict(config.to_dict())
    for one in _configs(made):
        one._attn_implementation = attention
        one.use_cache = False
    cls = class_of(config)
    with BUILDING:
        with no_init_weights(), _parameters_on_meta():
            model: PreTrainedModel = cls(made)
        for one in _configs_of(model):
            one._experts_implementation = experts  # not before: classes without experts refuse it
        model.tie_weights()
    model.train(mode=False)
    return model


def attend_by(model: PreTrainedModel, attention: str) -> None:
    """Change the implementation of attention."""
    for config in _configs_of(model):
        config._attn_implementation = attention


def _configs_of(model: PreTrainedModel) -> Iterator[PreTrainedConfig]:
    for module in model.modules():
        if isinstance(config := getattr(module, "config", None), PreTrainedConfig):
            yield config


def _configs(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    yield config
    for name in config.sub_configs:
        if (inner := getattr(config, name, None)) is not None:
            yield from _configs(inner)


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":
            parameter = nn.Parameter(parameter.data.to("meta"), requires_grad=False)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def head_of(model: PreTrainedModel) -> nn.Linear:
    """The language-model head. Raises UnsupportedModel if it is not a linear layer."""
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if not isinstance(head, nn.Linear):
        raise UnsupportedModel(f"{type(model).__name__} has no linear head for the vocabulary")
    return head


def table_of(model: PreTrainedModel) -> nn.Embedding:
    """The embedding of tokens. Raises UnsupportedModel if it is of another kind."""
    table = model.get_input_embeddings()
    if not isinstance(table, nn.Embedding):
        raise UnsupportedModel(f"{type(model).__name__} has no table of embeddings")
    return table


def path_of(model: nn.Module, wanted: nn.Module) -> str:
    return next(str(path) for path, module in model.named_modules() if module is wanted)


def on_meta(model: PreTrainedModel) -> PreTrainedModel:
    """`model` with its buffers on the meta device too."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(torch.device("meta"))
    return model


def fix_rotations(model: nn.Module, context: int) -> None:
    """Choose LongRoPE's angles for requests of up to `context` tokens, for all steps."""
    for module in model.modules():
        if getattr(module, "rope_type", None) == "longrope":
            last = torch.tensor([[context - 1]])
            module(last.float(), last)
            module.__dict__["rope_type"] = "fixed"
