"""From the bytes of an image file to RGB pixels. For a process with limits: files come from clients."""

from __future__ import annotations

import warnings
from io import BytesIO
from typing import Final

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from router.api.media.errors import ImageError

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Formats that are looked for; Pillow has others, some of which start programs."""
MAX_PIXELS: Final = 50_000_000
MAX_SIDE: Final = 30_000
_SIXTEEN_BITS: Final = frozenset({"I;16", "I;16L", "I;16B", "I;16N", "I"})
_OPAQUE: Final = (255, 255, 255, 255)


def decoded(file: bytes, longest_side: int | None = None) -> Image.Image:
    """The first frame as RGB, upright by its EXIF orientation, transparent parts on white.

    `longest_side`: shrink the image to fit a square of this side. Raises ImageError, and MemoryError.
    """
    if not file:
        raise ImageError("the file is empty")
    Image.MAX_IMAGE_PIXELS = None  # checked here, before anything is decoded
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(BytesIO(file), formats=FORMATS) as image:
                _check_size(*image.size)
                image.load()
                pixels = _rgb(ImageOps.exif_transpose(image))
        except UnidentifiedImageError:
            known = ", ".join(FORMATS)
            raise ImageError(f"it is no image in a format that is served: {known}") from None
        except (ImageError, MemoryError):
            raise
        except Exception as error:  # decoders raise arbitrary errors about damaged files
            raise ImageError(f"it is damaged: {str(error)[:200] or type(error).__name__}") from None
    if longest_side is not None:
        pixels.thumbnail((longest_side, longest_side), Image.Resampling.LANCZOS)
    return pixels


def _check_size(width: int, height: int) -> None:
    if width < 1 or height < 1:
        raise ImageError(f"it has {width} × {height} pixels")
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise ImageError(
            f"it has {width} × {height} pixels; at most {MAX_PIXELS} are possible, and {MAX_SIDE} on a side"
        )


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode in _SIXTEEN_BITS:
        return Image.fromarray(_eight_bits(image)).convert("RGB")
    if image.mode == "F":
        raise ImageError("its pixels are floating-point numbers, whose range is not known")
    if image.has_transparency_data:
        seen = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", seen.size, _OPAQUE), seen).convert("RGB")
    return image.convert("RGB")


def _eight_bits(image: Image.Image) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Grey values of 16 bits, which Pillow would cut at 255."""
    values = np.asarray(image)
    if int(values.min()) < 0 or int(values.max()) > 0xFFFF:
        raise ImageError("its grey values have more than 16 bits")
    return (values // 257).astype(np.uint8)
