"""Images of a conversation, from the messages to the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from router.api.generation.generation_request import Chat, Prompt, TokensWithImages
from router.api.generation.served_model import ServedModel
from router.api.generation.tenants import ANYBODY, CURRENT_TENANT
from router.api.media.images import Images
from router.api.media.marks import ImageSource, taken_out
from router.api.media.prompt import ExpandedPrompt, PromptMedia, require_places
from router.errors import InvalidRequest


def without_images(chat: Chat, model: ServedModel, images: Images | None) -> tuple[Chat, list[ImageSource]]:
    """The conversation with numbers in place of its images. Raises InvalidRequest.

    `images`: of the model; None: it takes none.
    """
    messages, sources = taken_out(chat.messages)
    if not sources:
        return chat, sources
    require_places(messages, _taken(model, images, "messages").facts)
    return replace(chat, messages=messages), sources


def images_of(prompt: Prompt) -> Sequence[ImageSource]:
    """As the request has them."""
    match prompt:
        case Chat():
            return taken_out(prompt.messages)[1]
        case TokensWithImages():
            return prompt.images
        case _:
            return ()


async def placed(prompt: TokensWithImages, model: ServedModel, images: Images | None) -> PromptMedia:
    """The images of a prompt at the places that its tokens have for them. Raises InvalidRequest."""
    facts = _taken(model, images, "images").facts
    shown = await expanded(facts.placeholder * len(prompt.images), prompt.images, images)
    places = sum(token == facts.row_id for token in prompt.tokens)
    if places != (rows := sum(image.rows for image in shown.images)):
        raise InvalidRequest(
            f"The prompt has places for {places} rows of images, and the images have {rows}.", param="images"
        )
    return shown.placed(prompt.tokens)


def _taken(model: ServedModel, images: Images | None, param: str) -> Images:
    """Raise InvalidRequest if the model takes no images."""
    if images is None:
        message = f"The model {model.name!r} takes no images: {model.no_images}."
        raise InvalidRequest(message, param=param, code="unsupported_parameter")
    return images


async def expanded(text: str, sources: Sequence[ImageSource], images: Images | None) -> ExpandedPrompt:
    """The rendered conversation with the texts of its images. Raises InvalidRequest."""
    if images is None or not sources:
        return ExpandedPrompt(text)
    tenant = CURRENT_TENANT.get()
    found = await images.processed(sources, "" if tenant is ANYBODY else tenant.name)
    return ExpandedPrompt.of(text, found, images.facts)
