"""Fields of a body that are sampling parameters of the engine, under the same names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args, get_type_hints

from pydantic import Field, create_model
from typing_extensions import Doc

from engine.core.sampling_params import SharedParams
from router.api.generation.params.validation import RequestModel


def _description(kind: Any) -> str | None:
    parts = (*get_args(kind), *getattr(kind, "__metadata__", ()))
    return next((part.documentation for part in parts if isinstance(part, Doc)), None)


_FIELDS: Final[dict[str, Any]] = {
    name: (kind | None, Field(default=None, description=description))
    for name, kind in get_type_hints(SharedParams, include_extras=True).items()
    if (description := _description(kind)) is not None
}
SAMPLED: Final = _FIELDS.keys()
"""Parameters with a description beside their type. Of the others the APIs have bounds of their own."""

if TYPE_CHECKING:

    class SampledBody(RequestModel): ...

else:
    SampledBody: Final = create_model("SampledBody", __base__=RequestModel, **_FIELDS)
    """Absent parameters have the model's defaults, or those of OpenAI's API."""
