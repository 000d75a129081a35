"""The images of a model: whether it takes them, and their processes."""

from __future__ import annotations

from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path

from engine.config import EngineConfig
from engine.media.support import image_refusal
from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_spec import ModelSpec
from router.api.media.errors import ImageProcessorFailed
from router.api.media.images import Images, ImageSettings
from router.api.media.sources import AllowedSources
from router.config.flags.media_settings import image_limit, media_hosts, processor_options
from router.config.settings import RouterConfig


async def open_images(
    config: RouterConfig, engine: EngineConfig, folder: Path, spec: ModelSpec, stack: AsyncExitStack
) -> tuple[Images | None, str]:
    """The model's images, which end with `stack`; or why it takes none.

    Loads the processor, in seconds. Raises UnsupportedModel.
    """
    refusal = image_refusal(engine, spec)
    if spec.vision is None or refusal:
        return None, refusal
    if find_spec("PIL") is None:
        return None, "its server lacks Pillow, of the extra `images`"
    media = config.media
    local = media.allowed_local_media_path
    settings = ImageSettings(
        limit=image_limit(media),
        processes=media.image_processes,
        cache_bytes=int(media.mm_processor_cache_gb * 1e9),
        options=processor_options(media),
        arrays=tuple(sorted(spec.vision.arrays)),
        allowed=AllowedSources(media_hosts(media), None if local is None else Path(local)),
        separate_tenants=config.access.separate_tenants,
    )
    images = Images(folder, settings)
    stack.push_async_callback(images.close)
    try:
        await images.start()
    except ImageProcessorFailed as error:
        raise UnsupportedModel(str(error)) from error
    if images.facts.row_id != spec.vision.placeholder:
        raise UnsupportedModel(
            f"the image processor of {folder} writes token {images.facts.row_id} for images, but the model"
            f" takes {spec.vision.placeholder}"
        )
    return images, ""
