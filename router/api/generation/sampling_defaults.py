"""Default sampling parameters of requests, from the model's generation_config.json."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.core.sampling_params import MinP, RepetitionPenalty, Temperature, TopK, TopP
from engine.model_config.errors import UnsupportedModel
from router.config.choices import GenerationConfig

_log: Final = logging.getLogger(__name__)
_FILE: Final = "generation_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Values for parameters that a request leaves out. The defaults of this class are OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    """None: as many as the context holds."""

    @classmethod
    def of_model(cls, folder: Path) -> SamplingDefaults:
        """Defaults of the checkpoint in `folder`; `do_sample: false` is a temperature of 0.

        Raises UnsupportedModel for a value that is out of range.
        """
        path = folder / _FILE
        if not path.exists():
            return cls()
        try:
            found = _GenerationConfig.model_validate_json(path.read_bytes())
        except ValidationError as error:
            [first, *_] = error.errors(include_url=False)
            place = ".".join(map(str, first["loc"]))
            raise UnsupportedModel(
                f"{path}: {place}: {first['msg']}; correct it, or use --generation-config none"
            ) from None
        given = found.model_dump(exclude_none=True)
        given |= {"max_tokens": given.pop("max_new_tokens")} if "max_new_tokens" in given else {}
        if given.pop("do_sample", None) is False:
            given["temperature"] = 0.0
        return cls(**given)

    def of_its_own(self) -> dict[str, Any]:
        """Defaults that differ from OpenAI's."""
        plain = asdict(OPENAI_DEFAULTS)
        return {name: value for name, value in asdict(self).items() if value != plain[name]}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in self.of_its_own().items())


OPENAI_DEFAULTS: Final = SamplingDefaults()


class _GenerationConfig(BaseModel):
    """Fields of transformers' file that apply here; others are ignored."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    do_sample: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    max_new_tokens: Annotated[int, Field(ge=1)] | None = None


def sampling_defaults(choice: GenerationConfig, folder: Path) -> SamplingDefaults:
    """Defaults by --generation-config for the model in `folder`; logs those that differ from OpenAI's.

    Raises UnsupportedModel.
    """
    found = OPENAI_DEFAULTS if choice is GenerationConfig.NONE else SamplingDefaults.of_model(folder)
    if found != OPENAI_DEFAULTS:
        _log.info("default sampling parameters from generation_config.json: %s", found)
    return found
