"""What a row of checkpoints consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from router.api.generation.output.call_formats import ToolFormat
from tests.unit.engine.modeling.loader.published_accepted import ACCEPTED
from tests.unit.engine.modeling.loader.published_refused import REFUSED
from tests.unit.engine.modeling.loader.published_shapes import LLAMA_8B
from tests.unit.engine.modeling.loader.published_vendors import VENDORS

Config = Mapping[str, Any]


@dataclass(frozen=True)
class OfClass:
    """A tiny model of a class of transformers, with its default config but for the sizes."""

    name: str
    quantization: Config | None = None


@dataclass(frozen=True)
class OfConfig:
    """A published config.json, as far as the tensors that it asks for."""

    config: Config


@dataclass(frozen=True)
class OfFile:
    """GGUF files of an architecture."""

    architecture: str


@dataclass(frozen=True)
class OfName:
    """GGUF files of a repository, of which one quantization is named."""

    files: tuple[str, ...]
    quantization: str


@dataclass(frozen=True)
class OfAdapter:
    """A PEFT folder for a class."""

    name: str


Part = OfClass | OfConfig | OfFile | OfName | OfAdapter


@dataclass(frozen=True)
class Row:
    number: int
    checkpoints: str
    parts: tuple[Part, ...]
    matters: bool = False
    """Whether it is among the models that most people run."""
    template: str = ""
    """What the chat template writes around calls; empty: it has none."""
    calls: ToolFormat | None = None
    """The format of the model's own calls."""


def classes(*names: str) -> tuple[OfClass, ...]:
    return tuple(OfClass(name) for name in names)


def published(*names: str) -> tuple[OfConfig, ...]:
    known: dict[str, Config] = {one.name: one.config for one in (*ACCEPTED, *VENDORS, *REFUSED)}
    return tuple(OfConfig(known[name]) for name in names)


def quantized(method: str) -> OfConfig:
    return OfConfig(LLAMA_8B | {"quantization_config": {"quant_method": method}})
