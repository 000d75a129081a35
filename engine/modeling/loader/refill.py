"""Fills a loaded model again, in place: with another checkpoint of the same shape and format.

A packed layer gets a stand-in, whose weights are laid out as in checkpoints, when the first of its tensors is
read. When it has them all, it is packed, and copied over the layer. So a few layers have their weights twice,
for a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import torch
from torch import nn

from common.progress import Progress, silent
from engine.model_config.errors import WeightsError
from engine.model_config.model_spec import ModelSpec
from engine.modeling.layers.linear.packable import LayoutChanged, Packable
from engine.modeling.loader.filling import check, fill
from engine.modeling.loader.model_loader import defaults
from engine.modeling.loader.places import Place, parts_by_module, places_in
from engine.modeling.loader.weight_files import check_whole, weight_files
from engine.modeling.models.base import CausalLM


class Refill:
    """One checkpoint for a model that is packed."""

    def __init__(self, model: CausalLM, folder: Path, spec: ModelSpec) -> None:
        """Checks the shape, and the name, shape and dtype of every tensor; writes nothing. `spec`: that of
        `folder`, as it would be loaded.

        Raises WeightsError if the model cannot take it.
        """
        check_shape(folder, spec, model.spec)
        self._model = model
        self._files = weight_files(folder)
        check_whole(self._files)
        check(model, self._files, _StandIns(model, torch.device("meta")))

    @torch.no_grad()
    def run(self, progress: Progress = silent) -> None:
        """Overwrite all weights. Nothing may compute with them meanwhile.

        Raises WeightsError where values decide how a format lays out weights, and these need another layout
        than those before. Then only a part of the weights is new, and nothing may be computed before another
        refill has succeeded.
        """
        model, device = self._model, self._model.embed.weight.device
        fill(model, self._files, _StandIns(model, device), progress)
        model.pack_tied_head()
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def check_shape(folder: Path, spec: ModelSpec, loaded: ModelSpec) -> None:
    """Raises WeightsError unless `spec`, that of `folder`, is that of the loaded model."""
    if changed := [one.name for one in fields(spec) if getattr(spec, one.name) != getattr(loaded, one.name)]:
        raise WeightsError(
            f"{folder} describes another model ({', '.join(changed)}): only weights of the same shape and"
            " format can replace those of a running one"
        )


class _StandIns:
    """Targets in layers that stand in for packed ones, and in all others themselves."""

    def __init__(self, model: CausalLM, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._parts = parts_by_module(model)
        self._waiting = {
            path: set(places_in(self._stand_in(path, torch.device("meta")), parts))
            for path, parts in self._parts.items()
        }
        """Tensors of each module that have not been copied yet."""
        self._paths = {name: path for path, names in self._waiting.items() for name in names}
        self._untaken = dict.fromkeys(self._paths)
        self._open: dict[str, nn.Module] = {}
        self._places: dict[str, list[Place]] = {}

    def take(self, name: str) -> Sequence[Place]:
        if name not in self._untaken:
            return []
        del self._untaken[name]
        path = self._paths[name]
        if path not in self._open:
            self._open[path] = self._stand_in(path, self._device)
            self._places |= places_in(self._open[path], self._parts[path])
        return self._places.pop(name)

    def filled(self, name: str) -> None:
        if (path := self._paths.get(name)) is None:
            return
        self._waiting[path].discard(name)
        if not self._waiting[path]:
            self._close(path)

    @property
    def missing(self) -> list[str]:
        return list(self._untaken)

    def _stand_in(self, path: str, device: torch.device) -> nn.Module:
        module = self._model.get_submodule(path)
        if not isinstance(module, Packable):
            return module
        with defaults(device, self._model.embed.weight.dtype):
            return module.unpacked()

    def _close(self, path: str) -> None:
        module, loaded = self._model.get_submodule(path), self._open.pop(path)
        if isinstance(module, Packable) and isinstance(loaded, Packable):
            loaded.pack()
            try:
                module.refill(loaded)
            except LayoutChanged as error:
                raise WeightsError(
                    f"{path} cannot be filled again: {error}; start a worker anew with this checkpoint"
                ) from error
