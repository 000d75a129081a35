"""OpenAI's Predicted Outputs: the answer as the client expects it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Tag

from router.frontend.fields import TEXT_OR_LIST
from router.processing.params.validation import STRICT


class PredictedText(BaseModel):
    model_config = STRICT

    type: Literal["text"]
    text: str


class PredictionBody(BaseModel):
    """Tokens of it are verified several at a time. The answer is the same without it."""

    model_config = STRICT

    type: Literal["content"]
    content: Annotated[
        Annotated[str, Tag("text")] | Annotated[list[PredictedText], Tag("list")],
        TEXT_OR_LIST,
    ]

    @property
    def text(self) -> str:
        parts = self.content
        return parts if isinstance(parts, str) else "".join(part.text for part in parts)
