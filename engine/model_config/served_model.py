"""What an engine asks of a model besides its steps, and all that a simulated one has."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from common.kv_groups import KVGroup
from engine.model_config.parts.vision_spec import VisionSpec


class ServableSpec(Protocol):
    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_token_ids(self) -> Collection[int]: ...

    @property
    def vision(self) -> VisionSpec | None: ...

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]: ...
