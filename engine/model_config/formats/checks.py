"""What readers of `quantization_config` share: refusals of fields, and formats of several modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from engine.model_config.errors import UnsupportedModel
from engine.model_config.quantization import Quantization

Config: TypeAlias = Mapping[str, Any]


def require(fields: Config, method: str, field: str, *values: object) -> None:
    """Raises UnsupportedModel unless `field` has one of `values`; null is what the field is by default."""
    found = fields.get(field)
    if found is not None and found not in values:
        raise refusal(method, field, found, [value for value in values if value is not None])


def choice(fields: Config, method: str, field: str, *values: str) -> str:
    """The value of a field that has no default. Raises UnsupportedModel unless it is one of `values`."""
    found = fields.get(field)
    if found not in values:
        raise refusal(method, field, found, values)
    return str(found)


def refusal(method: str, field: str, found: object, known: Iterable[object]) -> UnsupportedModel:
    use = " or ".join(map(repr, known))
    return UnsupportedModel(f"{method} with {field}={found!r} is not supported; use a checkpoint with {use}")


def static_scales(given: bool) -> tuple[str, ...]:
    """Tensors that are not read where scales of activations are `given`.

    Activations are quantized token by token instead, which is at least as exact: no value exceeds the range,
    and no token's values are rounded in the units of the largest one that calibration saw.
    """
    return ("input_scale", "input_zero_point") if given else ()


def of_all(formats: Sequence[Quantization]) -> Quantization:
    """One description of formats by module. One of them may be that of all modules that no other names.

    Raises UnsupportedModel.
    """
    named = sorted(formats, key=lambda each: bool(each.targets))
    if len(named) > 1 and not named[1].targets:
        raise UnsupportedModel(
            "two formats of all linear layers are not supported; use a checkpoint with one"
        )
    unused = tuple(dict.fromkeys(name for each in formats for name in each.unused))
    return replace(named[0], others=tuple(named[1:]), unused=unused)
