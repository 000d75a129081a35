"""LoRA adapters of offline inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from engine.core.adapters import AdapterInfo
from engine.errors import AdapterRefused
from engine.loop.adapters import Adapters


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter, as in vLLM. It is identified by its content: `lora_int_id` means nothing here."""

    lora_name: str
    lora_int_id: int
    lora_path: str


Loras: TypeAlias = LoRARequest | Sequence[LoRARequest | None] | None
"""For all prompts, or one for each."""


LoadedLoras: TypeAlias = Mapping[LoRARequest | None, AdapterInfo]
"""The engine's adapters; None has none."""


def for_each(loras: Loras, count: int) -> Sequence[LoRARequest | None]:
    """Raises ValueError."""
    if loras is None or isinstance(loras, LoRARequest):
        return [loras] * count
    if len(loras) != count:
        raise ValueError(f"{count} prompts, but {len(loras)} lora_requests; give one, or one for each.")
    return loras


def loaded(adapters: Adapters, loras: Sequence[LoRARequest | None]) -> LoadedLoras:
    """The engine's adapters, read anew each time. Raises ValueError for what cannot be served."""
    wanted = list(dict.fromkeys(lora for lora in loras if lora is not None))
    for lora in wanted:
        adapters.begin(lora.lora_name, Path(lora.lora_path))
    try:
        read = [adapters.read(lora.lora_name, Path(lora.lora_path)) for lora in wanted]
        infos = [adapters.add(adapter) for adapter in read]
    except AdapterRefused as error:
        raise ValueError(str(error)) from None
    if not all(info.digest in adapters for info in infos):
        raise ValueError(f"{len(wanted)} adapters are too many at a time; raise max_cpu_loras.")
    return dict(zip(wanted, infos, strict=True))
