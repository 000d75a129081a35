"""Images in the content of OpenAI's messages and items."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from router.api.generation.params.validation import RequestModel
from router.api.media.marks import written

Detail: TypeAlias = Literal["auto", "low", "high", "original"]
MAX_UUID: Final = 256
"""Characters."""

OTHER_MEDIA: Final = {
    "input_audio": "audio",
    "audio_url": "audio",
    "audio": "audio",
    "video_url": "videos",
    "video": "videos",
    "input_video": "videos",
    "file": "files",
    "input_file": "files",
    "document": "documents",
    "image_embeds": "embeddings of images",
}
"""Types of parts that are refused by name, and what they are."""


class ImageUrl(RequestModel):
    url: str
    """data:, or https:, http: and file: from where the server allows."""
    detail: Detail | None = None
    """`low`: the image is shrunk to 512 pixels on its longest side."""


class ImagePart(RequestModel):
    """An image in a message of a user or a tool."""

    type: Literal["image_url"]
    image_url: ImageUrl | str | None = None
    """null: the image that was sent with this `uuid` before."""
    uuid: str | None = None
    """vLLM's: a name for the image, under which the server keeps it for a while."""


def image_text(part: dict[str, Any], number: int) -> str:
    """An image_url part as a piece of the content. Raises PydanticCustomError."""
    try:
        image = ImagePart.model_validate(part)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise PydanticCustomError(
            "content",
            "Part {number} is wrong: {place}: {reason}",
            {"number": number, "place": ".".join(map(str, first["loc"]))[:100], "reason": first["msg"]},
        ) from None
    url, detail = (
        (image.image_url, None)
        if not isinstance(image.image_url, ImageUrl)
        else (
            image.image_url.url,
            image.image_url.detail,
        )
    )
    return piece_of(url, detail, image.uuid, number)


def piece_of(url: str | None, detail: Detail | None, uuid: str | None, number: int) -> str:
    """Raises PydanticCustomError for an image without a URL and a name, and for a name that is too long."""
    if not url and not uuid:
        raise PydanticCustomError(
            "content", "Part {number} has no image: its URL is empty", {"number": number}
        )
    if uuid is not None and len(uuid) > MAX_UUID:
        raise PydanticCustomError(
            "content",
            "Part {number} has a uuid of more than {most} characters",
            {"number": number, "most": MAX_UUID},
        )
    return written(url or "", detail, uuid)
