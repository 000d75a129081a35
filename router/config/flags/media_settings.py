"""Settings of images that are texts: what they mean, and what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from router.config.groups.media import MediaSettings

_IMAGES: Final = 32


class WrongMedia(ValueError):
    """The message says what is wrong."""


def image_limit(settings: MediaSettings) -> int:
    """Images of a request at most. Raises WrongMedia."""
    limits = _object(settings.limit_mm_per_prompt)
    limit = limits.pop("image", _IMAGES)
    if isinstance(limit, dict):  # vLLM's form with sizes for profiling
        limit = limit.get("count")
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise WrongMedia(f"{settings.limit_mm_per_prompt}: the number of images must be 0 or more")
    if any(limits.values()):
        raise WrongMedia(f"{settings.limit_mm_per_prompt}: only images are served, not {min(limits)}")
    return limit


def processor_options(settings: MediaSettings) -> dict[str, Any]:
    """Arguments of the image processor. Raises WrongMedia."""
    return _object(settings.mm_processor_kwargs)


def media_hosts(settings: MediaSettings) -> tuple[str, ...]:
    """Hosts from which images may be fetched, in lower case."""
    words = (settings.allowed_media_domains or "").replace(",", " ").split()
    return tuple(word.lower().removeprefix("[").removesuffix("]") for word in words)


def complaints(settings: MediaSettings) -> Iterator[str]:
    """What is wrong, with the flag's name."""
    for flag, read in (("--limit-mm-per-prompt", image_limit), ("--mm-processor-kwargs", processor_options)):
        try:
            read(settings)
        except WrongMedia as error:
            yield f"{flag} {error}"
    for host in media_hosts(settings):
        if "/" in host or "*" in host or ("." not in host and ":" not in host and host != "localhost"):
            yield f"--allowed-media-domains {host}: use hosts alone, such as images.example.com"
    folder = settings.allowed_local_media_path
    if folder is not None and not Path(folder).is_dir():
        yield f"--allowed-local-media-path {folder} is no folder"


def _object(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise WrongMedia(f"{text}: use a JSON object")
    return found
