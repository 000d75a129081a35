"""Settings of LoRA adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engine.config import LoraConfig
from router.config.option import Heading

_adapters = Heading("LoRA adapters")
_DEFAULTS: Final = LoraConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    enable_lora: bool = _adapters(False, "serve LoRA adapters beside the base model")
    lora_modules: str | None = _adapters(
        None,
        "adapters to load at startup: folders of PEFT by the model names under which they are served;"
        " shell quoting, or vLLM's JSON",
        "'NAME=PATH ...'|JSON",
        aliases=("--lora-paths",),
    )
    max_loras: int = _adapters(
        _DEFAULTS.max_loras,
        "adapters that a step can compute with; requests of others wait",
        "N",
        least=1,
        aliases=("--max-loras-per-batch",),
    )
    max_lora_rank: int = _adapters(
        _DEFAULTS.max_lora_rank,
        "largest rank of an adapter; memory for it is set aside",
        "N",
        least=1,
        most=512,
    )
    max_cpu_loras: int = _adapters(
        _DEFAULTS.max_cpu_loras,
        "adapters in host memory, of which the least recently used makes room for another",
        "N",
        least=1,
        aliases=("--max-loaded-loras",),
    )

    @property
    def engine(self) -> LoraConfig | None:
        """What engines get; None: they take no adapters."""
        if not self.enable_lora:
            return None
        return LoraConfig(
            max_loras=self.max_loras, max_lora_rank=self.max_lora_rank, max_cpu_loras=self.max_cpu_loras
        )
