"""Settings of images in prompts."""

from __future__ import annotations

from dataclasses import dataclass

from router.config.option import Heading

_media = Heading("images")


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSettings:
    limit_mm_per_prompt: str | None = _media(
        None, 'images of a request at most, as JSON: {"image": 4} (default: 32)', "JSON"
    )
    allowed_media_domains: str | None = _media(
        None,
        "comma-separated hosts from which images are fetched; a name must have public addresses, an address"
        " may be any (default: none)",
        "HOSTS",
    )
    allowed_local_media_path: str | None = _media(
        None, "folder below which file: URLs of images are read (default: none)", "FOLDER"
    )
    mm_processor_kwargs: str | None = _media(
        None, 'arguments of the model\'s image processor, as JSON, such as {"max_pixels": 501760}', "JSON"
    )
    mm_processor_cache_gb: float = _media(1.0, "memory of the router for processed images", "GB", least=0)
    image_processes: int = _media(
        2, "processes of the router that decode and process images, 0.4 GB each", "N", least=1
    )
