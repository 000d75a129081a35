"""Loads what people serve, as tiny models or by published configs, and prints how many of it.

    python -m tests.integration.models.checkpoints.table

prints a row for each kind of checkpoint, and takes two minutes of a core and 5 GB.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING

from engine.adapters.peft_folder import read_adapter
from engine.model_config import general
from engine.model_config.errors import CheckpointError, UnsupportedModel
from engine.model_config.model_spec import ModelSpec
from engine.modeling.general import describe
from engine.modeling.layers.factory import Layers
from engine.modeling.layers.ops.select import ops_for
from engine.modeling.loader.gguf.architectures import ARCHITECTURES
from engine.modeling.loader.gguf.rearranged import REARRANGED
from engine.modeling.loader.hub.download import _of_quantization
from engine.modeling.loader.places import places_of
from engine.modeling.models import registry
from engine.parallel.communicator import SINGLE_RANK
from router.api.generation.output.formats import OutputFormats
from tests.integration.models.checkpoints.parts import (
    Config,
    OfAdapter,
    OfClass,
    OfConfig,
    OfFile,
    OfName,
    Part,
    Row,
)
from tests.integration.models.checkpoints.rows import ROWS
from tests.integration.models.classes.outcome import Served
from tests.integration.models.classes.shrinking import classes, random_model, tiny_config
from tests.integration.models.classes.table import outcome_of
from tests.unit.engine.adapters.peft_oracle import save_adapter

_ENCODERS = {
    "Qwen3Model": "qwen3",
    "Gemma3TextModel": "gemma3_text",
    "XLMRobertaModel": "xlm-roberta",
    "BertModel": "bert",
    "XLMRobertaForSequenceClassification": "xlm-roberta",
    "LlamaForSequenceClassification": "llama",
    "Qwen2ForSequenceClassification": "qwen2",
}


class Refused(Exception):
    """A part of a row does not load."""


@dataclass(frozen=True)
class Result:
    row: Row
    refused: tuple[str, ...]
    """Why, of each part that does not load."""

    @property
    def loads(self) -> bool:
        return not self.refused

    @property
    def calls_tools(self) -> bool:
        """In the format of the model."""
        if not self.loads or self.row.calls is None:
            return False
        return OutputFormats.of_template(self.row.template, takes_tools=True).tools is self.row.calls


def result(row: Row) -> Result:
    general._described = describe.answer  # here, where transformers is imported already
    return Result(row, tuple(reason for part in row.parts if (reason := why_not(part)) is not None))


@cache
def _of_class(name: str) -> str | None:
    if name in _ENCODERS:
        config = CONFIG_MAPPING[_ENCODERS[name]]()
        return _refusal({**config.to_dict(), "architectures": [name]})
    found = outcome_of(name, classes()[name])
    return found.reason if found.served is Served.REFUSED else None


def why_not(part: Part) -> str | None:
    """None: it loads."""
    match part:
        case OfClass(name, None):
            return _of_class(name)
        case OfClass(name, quantization):
            fields = tiny_config(classes()[name]).to_dict()
            return _refusal({**fields, "architectures": [name], "quantization_config": quantization})
        case OfConfig(config):
            return _refusal(config)
        case OfFile(architecture):
            known = architecture in ARCHITECTURES or architecture in REARRANGED
            return None if known else f"GGUF architecture {architecture}"
        case OfName(files, quantization):
            return _of_name(list(files), quantization)
        case OfAdapter(name):
            return _of_adapter(name)


def _refusal(config: Config) -> str | None:
    """Why a config is refused, before or after the tensors that it asks for are named."""
    try:
        spec = ModelSpec.from_config(config)
        with torch.device("meta"):
            ops = ops_for(torch.device("cpu"), torch.float32)
            places_of(registry.build(spec, Layers(ops, SINGLE_RANK, spec.quantization)))
    except UnsupportedModel as error:
        return str(error)
    return None


def _of_name(files: list[str], quantization: str) -> str | None:
    try:
        return None if _of_quantization(files, "owner/name", quantization) == files else "parts are missing"
    except CheckpointError as error:
        return str(error)


def _of_adapter(name: str) -> str | None:
    with TemporaryDirectory() as folder:
        base, target = Path(folder) / "base", Path(folder) / "adapter"
        random_model(tiny_config(classes()[name])).save_pretrained(base)
        found: Any = read_adapter("adapter", save_adapter(base, target, seed=1))
        return None if found.targets else "no layer is adapted"


def lines(results: Iterable[Result]) -> Iterable[str]:
    found = list(results)
    yield "| # | checkpoints | loads | calls | refused |"
    yield "| --- | --- | --- | --- | --- |"
    for one in found:
        some = "in part" if len(one.refused) < len(one.row.parts) else "no"
        calls = one.row.calls.value if one.calls_tools and one.row.calls else ""
        short = (reason.partition("; Baton runs")[0][:160] for reason in one.refused)
        reasons = "; ".join(short).replace("|", "/")
        number = f"**{one.row.number}**" if one.row.matters else str(one.row.number)
        loads = "yes" if one.loads else some
        yield f"| {number} | {one.row.checkpoints} | {loads} | {calls} | {reasons} |"
    yield ""
    yield summary(found)


def summary(found: list[Result]) -> str:
    matter = [one for one in found if one.row.matters]
    return (
        f"{sum(one.loads for one in found)} of {len(found)} load,"
        f" {sum(one.loads for one in matter)} of {len(matter)} load,"
        f" {sum(one.calls_tools for one in matter)} of {len(matter)} call tools in their format"
    )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    for line in lines(map(result, ROWS)):
        print(line, flush=True)
