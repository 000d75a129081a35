"""Images within the content of a message, which is text everywhere between an API and the chat template.

An API writes an image into the text between marks that no client can guess. Generation takes the images out,
and leaves the number of each in its place.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

_KEY: Final = secrets.token_hex(8)
_BEGIN: Final = f"\ue001{_KEY}["
_END: Final = f"]{_KEY}\ue001"


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image as a request names it."""

    url: str
    """data:, http:, https: or file:; empty: an earlier image of the same `uuid`."""
    detail: str = "auto"
    """OpenAI's: "low" shrinks the image."""
    uuid: str = ""
    """vLLM's: a name of the client's for the image."""


def written(url: str, detail: str | None = None, uuid: str | None = None) -> str:
    """An image as a piece of a content. See `ImageSource`."""
    source = ImageSource(url, detail or "auto", uuid or "")
    return f"{_BEGIN}{json.dumps(asdict(source))}{_END}"


def joined(pieces: Sequence[str]) -> str:
    """A content of texts and images: line breaks are between texts, and nothing beside an image."""
    content = list(pieces[:1])
    for before, piece in pairwise(pieces):
        if not piece.startswith(_BEGIN) and not before.endswith(_END):
            content.append("\n")
        content.append(piece)
    return "".join(content)


def taken_out(
    messages: Iterable[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[ImageSource]]:
    """The messages with numbers in place of their images, and the images."""
    sources: list[ImageSource] = []

    def numbered(piece: str) -> str:
        image, _, text = piece.partition(_END)
        sources.append(ImageSource(**json.loads(image)))
        return _numbered(len(sources) - 1) + text

    shown: list[Mapping[str, Any]] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, str) and _BEGIN in content:
            text, *pieces = content.split(_BEGIN)
            message = {**message, "content": text + "".join(map(numbered, pieces))}
        shown.append(message)
    return shown, sources


_NUMBER: Final = f"\ue001{_KEY}#"
_NUMBER_END: Final = f"#{_KEY}\ue001"


def _numbered(number: int) -> str:
    return f"{_NUMBER}{number}{_NUMBER_END}"


def numbers_in(content: Any) -> list[int]:
    """Numbers of the images in a content, in its order."""
    text = content if isinstance(content, str) else ""
    return [int(piece.partition(_NUMBER_END)[0]) for piece in text.split(_NUMBER)[1:]]


def parts_of(content: str) -> list[dict[str, str]]:
    """A content as the parts that templates of vision models take; one at least."""
    text, *pieces = content.split(_NUMBER)
    parts = [{"type": "text", "text": text}] if text or not pieces else []
    for piece in pieces:
        text = piece.partition(_NUMBER_END)[2]
        parts.append({"type": "image"})
        if text:
            parts.append({"type": "text", "text": text})
    return parts


def with_placeholders(text: str, placeholder: str) -> str:
    """The text with `placeholder` for each image."""
    first, *rest = text.split(_NUMBER)
    return placeholder.join([first, *(piece.partition(_NUMBER_END)[2] for piece in rest)])


def images_after_tools(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The conversation with the images of tools' results in the user's message after them, or in one of their
    own: few chat templates show images of tools."""
    said: list[Mapping[str, Any]] = []
    images = ""
    for message in messages:
        content = message["content"]
        if message["role"] == "tool":
            images += "".join(map(_numbered, numbers_in(content)))
            message = {**message, "content": with_placeholders(content, "")}
        elif images and message["role"] == "user":
            message, images = {**message, "content": images + content}, ""
        elif images:
            said.append({"role": "user", "content": images})
            images = ""
        said.append(message)
    return [*said, {"role": "user", "content": images}] if images else said
