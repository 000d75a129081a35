"""Annotations of parameters that a request model lists but the server does not have.

Request models forbid fields that they do not list. Those of the original API that mean nothing here, or that
are refused, are listed with the reason, which docs/api.md repeats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pydantic import Discriminator, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

__all__ = ["TEXT_OR_LIST", "TEXT_OR_OBJECT", "Refused", "WithoutEffect"]


def _text_or(other: str) -> Discriminator:
    """For a union with the tags "text" and `other`: errors are those of the member that is meant."""
    return Discriminator(lambda value: "text" if isinstance(value, str) else other)


TEXT_OR_LIST: Final = _text_or("list")
TEXT_OR_OBJECT: Final = _text_or("object")


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """Any value is accepted: no answer depends on it."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """Any value is refused but null and those of `neutral`, which ask for what happens anyway."""

    reason: str
    neutral: tuple[Any, ...] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"enum": [*self.neutral, None]}

    def _check(self, value: Any) -> Any:
        if value is None or any(value == other and type(value) is type(other) for other in self.neutral):
            return None
        raise PydanticCustomError(
            "unsupported", "not supported by this server: {reason}", {"reason": self.reason}
        )
