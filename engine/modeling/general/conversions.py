"""Turns the tensors of a checkpoint into those of transformers' modules, by transformers' own rules.

Checkpoints have other names than the classes of today, and one matrix per expert where a module has a stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Final

from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

_NEVER_READ: Final = re.compile(r"rotary_emb\.inv_freq$|(^|\.)position_ids$|\.masked_bias$")


class Conversions:
    """Names and tensors of one model's checkpoints. Collects what is merged until it is whole."""

    def __init__(self, model: PreTrainedModel) -> None:
        """`model`: as transformers has built it."""
        rules = get_model_conversion_mapping(model)
        self._model = model
        self._state = {name: tensor.numel() for name, tensor in model.state_dict().items()}
        self._renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
        self._converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
        self._by_pattern = {
            pattern: converter for converter in self._converters for pattern in converter.source_patterns
        }
        self._open: dict[str, dict[str, tuple[str, Tensor]]] = {}
        unexpected = model._keys_to_ignore_on_load_unexpected or ()
        self._ignored = [_NEVER_READ, *map(re.compile, unexpected)]

    def name(self, stored: str) -> str:
        """The first tensor of the modules that the checkpoint's tensor `stored` goes to."""
        return self._renamed(stored)[0]

    def ignores(self, name: str) -> bool:
        return any(pattern.search(name) for pattern in self._ignored)

    def tensors(self, stored: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The tensors of modules that are whole with this one of the checkpoint."""
        target, pattern = self._renamed(stored)
        if pattern is None:
            yield target, tensor
            return
        found = self._open.setdefault(target, {})
        found[stored] = (pattern, tensor)
        rule = self._by_pattern[pattern]
        if sum(part.numel() for _, part in found.values()) < self._size(target, rule):
            return
        yield from self._converted(self._open.pop(target), target, rule)

    def _renamed(self, stored: str) -> tuple[str, str | None]:
        """Tensors of a quantized layer, which the class does not have, go with its weight."""
        module, _, tensor = stored.rpartition(".")
        name, pattern = self._renamed_weight(stored)
        if name not in self._state and tensor != "weight":
            weight, of_weight = self._renamed_weight(f"{module}.weight")
            if weight in self._state and of_weight is None:
                return f"{weight.removesuffix('weight')}{tensor}", None
        return name, pattern

    def _renamed_weight(self, stored: str) -> tuple[str, str | None]:
        prefix = self._model.base_model_prefix
        name, pattern = rename_source_key(stored, self._renamings, self._converters, prefix, self._state)
        if name not in self._state and stored in self._state:
            return rename_source_key(stored, [], [], prefix, self._state)
        return name, pattern

    def _size(self, target: str, rule: WeightConverter) -> int:
        """Values of all tensors that a rule makes with `target`."""
        first = rule.target_patterns[0]
        targets = {target.replace(first, pattern) for pattern in rule.target_patterns}
        return sum(self._state.get(name, 0) for name in targets)

    def _converted(
        self, parts: dict[str, tuple[str, Tensor]], target: str, rule: WeightConverter
    ) -> Iterator[tuple[str, Tensor]]:
        whole = deepcopy(rule)
        for stored in sorted(parts, key=dot_natural_key):
            pattern, tensor = parts[stored]
            whole.add_tensor(target, stored, pattern, tensor)  # type: ignore[arg-type]
        converted = whole.convert(target, model=self._model, config=self._model.config)
        for name, tensor in converted.items():
            yield name, tensor[0] if isinstance(tensor, list) else tensor
