"""What becomes of a class of transformers: its answers equal transformers' own, or it is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from transformers import PreTrainedConfig

from engine.loop.engine import Engine
from engine.loop.hooks import NO_HOOKS
from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_impl import ModelImpl
from engine.model_config.model_spec import ModelSpec
from tests.engine_config import engine_config
from tests.integration.models.classes.shrinking import random_model
from tests.integration.models.test_every_architecture import KeepPages, greedy, handed_over

PROMPT: Final = [(7 * i * i + 3) % 97 for i in range(41)]
SIZES: Final = ((7, 4), (None, 16))
"""Tokens of a chunk and of a page."""


class Served(Enum):
    NATIVELY = "served natively"
    GENERALLY = "served by transformers' modules"
    REFUSED = "refused"


@dataclass(frozen=True)
class Outcome:
    served: Served
    reason: str = ""


class WrongAnswer(AssertionError):
    """Baton answers with other tokens than transformers."""


def outcome(config: PreTrainedConfig, name: str, folder: Path, impl: ModelImpl = ModelImpl.AUTO) -> Outcome:
    """Serve random weights of a config from `folder`: computed in one engine, answered by another.

    Raises WrongAnswer.
    """
    config.architectures = [name]
    fields = json.loads(json.dumps(config.to_dict(), default=str))
    try:
        spec = ModelSpec.from_config(fields, impl=impl)
    except UnsupportedModel as error:
        return Outcome(Served.REFUSED, str(error))
    expected = _saved(config, folder)
    for chunk, page in SIZES:
        prefill, decode = (
            Engine(
                engine_config(
                    model_path=folder,
                    chunk_budget=chunk,
                    page_size=page,
                    num_pages=160 // page * len(spec.kv_groups),
                    max_model_len=128,
                    max_running_requests=4,
                    model_impl=impl,
                ),
                hooks=hooks,
            )
            for hooks in (KeepPages(), NO_HOOKS)
        )
        answers = handed_over(prefill, decode, [PROMPT], page)
        if answers != [expected]:
            raise WrongAnswer(f"{name}, chunks of {chunk}: {answers[0]} instead of {expected}")
    return Outcome(Served.NATIVELY if spec.general is None else Served.GENERALLY)


def _saved(config: PreTrainedConfig, folder: Path) -> list[int]:
    """transformers' own answer, from random weights that are written to `folder`."""
    model = random_model(config)
    answer = greedy(model, PROMPT)
    model.save_pretrained(folder)
    return answer
