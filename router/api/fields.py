"""Annotations of parameters that a request model accepts but the server does not implement.

Request models forbid unknown fields. Fields of the original API that have no effect, or are refused, are
listed with the reason, which docs/api.md repeats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pydantic import Discriminator, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


def _text_or(other: str) -> Discriminator:
    """A discriminator for unions with the tags "text" and `other`, so that errors concern one member."""
    return Discriminator(lambda value: "text" if isinstance(value, str) else other)


TEXT_OR_LIST: Final = _text_or("list")
TEXT_OR_OBJECT: Final = _text_or("object")


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """Any value is accepted and has no effect on the answer."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """Values other than null and those in `neutral`, which ask for the default behaviour, are refused."""

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
