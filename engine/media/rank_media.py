"""Images on one rank of a worker: rank 0 has the vision model, and sends the others its rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from engine.config import EngineConfig
from engine.core.batch.media_layout import MediaLayout
from engine.core.batch.step_inputs import Ints
from engine.core.plan import StepPlan
from engine.media.encoder import MediaEncoder
from engine.media.loading import open_encoder
from engine.media.step_media import NO_MEDIA, StepMedia
from engine.media.support import image_refusal
from engine.modeling.models.base import CausalLM
from engine.parallel.communicator import Communicator


class RankMedia:
    def __init__(
        self, config: EngineConfig, model: CausalLM, device: torch.device, communicator: Communicator
    ) -> None:
        """Loads the vision model on rank 0. Raises WeightsError."""
        self._config = config
        self._spec = model.spec
        self._device = device
        self._dtype = model.embed.weight.dtype
        self._communicator = communicator
        self.vision: Final = None if image_refusal(config, model.spec) else model.spec.vision
        """None: images are refused."""
        self.encoder = self.opened(config.model_path, config.load_format)
        """None on other ranks, and if images are refused."""

    def opened(self, folder: Path, load_format: str = "auto") -> MediaEncoder | None:
        """An encoder with the weights of a folder, on rank 0. Raises WeightsError."""
        if not self._communicator.shard.is_first_rank:
            return None
        config = replace(self._config, model_path=folder, load_format=load_format)
        return open_encoder(config, self._spec, self._device, self._dtype)

    def of(self, plan: StepPlan) -> StepMedia:
        """On rank 0: see `MediaEncoder.of`."""
        return NO_MEDIA if self.encoder is None else self.encoder.of(plan)

    def share(self, media: StepMedia) -> None:
        """On rank 0: send the rows, after the inputs of the step."""
        if media.values is not None:
            self._communicator.broadcast(media.values.view(torch.uint8))

    def received(self, packed: Ints) -> StepMedia:
        """On other ranks: what rank 0 has shared. `packed`: `StepInputs.media`."""
        layout, values = MediaLayout.unpack(packed), None
        if self.vision is None or not len(packed):
            return NO_MEDIA
        if count := len(layout.rows):
            width = self._spec.hidden_size * (1 + self.vision.deepstack)
            values = torch.empty(count, width, dtype=self._dtype, device=self._device)
            self._communicator.broadcast(values.view(torch.uint8))
        return StepMedia.of(layout, values, self.vision, self._device)
