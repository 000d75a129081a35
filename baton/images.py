"""Images of offline inference, processed in this process."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engine.config import EngineConfig
from engine.media.support import image_refusal
from engine.model_config.model_spec import ModelSpec
from router.api.generation.text.tokenizer import Tokenizer
from router.api.media.errors import ImageError, ImageProcessorFailed
from router.api.media.images import longest_side
from router.api.media.marks import ImageSource, taken_out
from router.api.media.prompt import ExpandedPrompt, require_places
from router.api.media.sources import AllowedSources
from router.api.openai.messages import content_text
from router.config.flags.media_settings import media_hosts, processor_options
from router.config.groups.media import MediaSettings

if TYPE_CHECKING:
    from PIL.Image import Image

    from router.api.media.processor import ImageProcessor

Message = Mapping[str, Any]
_OF_PNG: Final = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


class OfflineImages:
    """The image processor of a model; loaded with the first image, in seconds."""

    def __init__(
        self,
        folder: Path,
        engine: EngineConfig,
        spec: ModelSpec,
        tokenizer: Tokenizer,
        settings: MediaSettings,
    ) -> None:
        self._refusal: Final = image_refusal(engine, spec)
        self._names: Final = sorted(spec.vision.arrays) if spec.vision is not None else ()
        self._folder, self._settings, self._tokenizer = folder, settings, tokenizer
        local = settings.allowed_local_media_path
        self._allowed: Final = AllowedSources(media_hosts(settings), None if local is None else Path(local))
        self._loaded: ImageProcessor | None = None

    def prompt(self, text: str, data: Mapping[str, Any]) -> ExpandedPrompt:
        """A text with placeholders, and `multi_modal_data`: {"image": one or several}. Raises ValueError."""
        if others := sorted(data.keys() - {"image"}):
            raise ValueError(f"multi_modal_data can have images only, not {others[0]}.")
        images = data.get("image", [])
        files = [_png(image) for image in (images if isinstance(images, list | tuple) else [images])]
        return self._expanded(text, [(file, None) for file in files]) if files else ExpandedPrompt(text)

    def conversation(self, messages: Sequence[Message], options: Mapping[str, Any]) -> ExpandedPrompt:
        """The prompt of a conversation. Raises ValueError, and InvalidRequest."""
        shown, sources = taken_out([_with_text(message) for message in messages])
        if not sources:
            return ExpandedPrompt(self._tokenizer.render(shown, options))
        require_places(shown, self._processor.facts)
        text = self._tokenizer.render(shown, options)
        with ThreadPoolExecutor(1) as thread:  # there may be an event loop in this one
            files = thread.submit(asyncio.run, self._files(sources)).result()
        return self._expanded(text, files)

    async def _files(self, sources: Sequence[ImageSource]) -> list[tuple[bytes, int | None]]:
        try:
            return [(await self._allowed.file(source.url), longest_side(source.detail)) for source in sources]
        except ImageError as error:
            raise ValueError(f"An image cannot be used: {error}.") from None

    def _expanded(self, text: str, files: Sequence[tuple[bytes, int | None]]) -> ExpandedPrompt:
        processor = self._processor
        from router.api.media.decode import decoded  # Pillow is in an extra

        try:
            images = [processor.process(decoded(file, side)) for file, side in files]
        except (ImageError, ValueError) as error:
            raise ValueError(f"An image cannot be used: {error}.") from None
        return ExpandedPrompt.of(text, images, processor.facts)

    @property
    def _processor(self) -> ImageProcessor:
        """Raises ValueError."""
        if self._refusal:
            raise ValueError(f"This model takes no images: {self._refusal}.")
        if self._loaded is None:
            from router.api.media.processor import ImageProcessor

            try:
                self._loaded = ImageProcessor(self._folder, processor_options(self._settings), self._names)
            except ImageProcessorFailed as error:
                raise ValueError(str(error)) from None
            self._tokenizer.show_images_as(self._loaded.facts.placeholder)
        return self._loaded


def _with_text(message: Message) -> Message:
    """The message with its content as text, with marks of images. Raises ValueError."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [
        {"type": "image_url", "image_url": {"url": _data_url(part["image_pil"])}}
        if isinstance(part, Mapping) and part.get("type") == "image_pil"
        else part
        for part in content
    ]
    return {**message, "content": content_text(parts)}


def _data_url(image: Image) -> str:
    return f"data:image/png;base64,{base64.b64encode(_png(image)).decode()}"


def _png(image: Image) -> bytes:
    """The image without loss, for all modes that PNG has."""
    file = BytesIO()
    (image if image.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16") else image.convert("RGB")).save(
        file, "PNG"
    )
    return file.getvalue()
