"""Records which experts compute the tokens of a step, layer by layer, at fixed addresses for CUDA graphs."""

from __future__ import annotations

import re
from typing import Final

import torch
from torch import Tensor, nn

from common.sidecars import SidecarKind, routed_experts
from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_spec import ModelSpec
from engine.modeling.layers.experts import ExpertRouter

_LAYER: Final = re.compile(r"\blayers\.(\d+)\.")


class ChosenExperts:
    """The experts of the last step's rows."""

    def __init__(self, model: nn.Module, spec: ModelSpec, max_rows: int, device: torch.device) -> None:
        """Routers of `model` write their choices from now on, also in graphs that are captured later.

        `max_rows`: of a step. Raises UnsupportedModel if the model has no experts whose choice can be seen.
        """
        routers = [(name, one) for name, one in model.named_modules() if isinstance(one, ExpertRouter)]
        if spec.experts is None or not routers:
            raise UnsupportedModel(
                f"--enable-return-routed-experts: {spec.architecture} has no experts whose choice this server"
                " sees"
            )
        layers, per_token = spec.num_layers, spec.experts.per_token
        self.kind: Final[SidecarKind] = routed_experts(layers, per_token, spec.experts.count)
        narrow = self.kind.row.itemsize == layers * per_token
        dtype = torch.uint8 if narrow else torch.int16
        self._rows: Final = torch.zeros((max_rows, layers, per_token), dtype=dtype, device=device)
        for name, router in routers:
            found = _LAYER.search(name)
            assert found is not None, name
            router.record = self._rows[:, int(found[1])]

    def of(self, num_rows: int) -> Tensor:
        """A copy of the choices for the first rows of the step that was enqueued last: [rows, layers, k]."""
        return self._rows[:num_rows].clone()
