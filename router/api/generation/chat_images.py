"""Images of a conversation, from the messages to the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from router.api.generation.generation_request import Chat
from router.api.generation.served_model import ServedModel
from router.api.generation.tenants import ANYBODY, CURRENT_TENANT
from router.api.media.images import Images
from router.api.media.marks import ImageSource, taken_out
from router.api.media.prompt import ExpandedPrompt, require_places
from router.errors import InvalidRequest


def without_images(chat: Chat, model: ServedModel, images: Images | None) -> tuple[Chat, list[ImageSource]]:
    """The conversation with numbers in place of its images. Raises InvalidRequest.

    `images`: of the model; None: it takes none.
    """
    messages, sources = taken_out(chat.messages)
    if not sources:
        return chat, sources
    if images is None:
        message = f"The model {model.name!r} takes no images: {model.no_images}."
        raise InvalidRequest(message, param="messages", code="unsupported_parameter")
    require_places(messages, images.facts)
    return replace(chat, messages=messages), sources


async def expanded(text: str, sources: Sequence[ImageSource], images: Images | None) -> ExpandedPrompt:
    """The rendered conversation with the texts of its images. Raises InvalidRequest."""
    if images is None or not sources:
        return ExpandedPrompt(text)
    tenant = CURRENT_TENANT.get()
    found = await images.processed(sources, "" if tenant is ANYBODY else tenant.name)
    return ExpandedPrompt.of(text, found, images.facts)
