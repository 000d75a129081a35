"""Image files of every kind, damaged and hostile ones included: pixels, or the reason why not."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from PIL import Image

from router.api.media.decode import MAX_PIXELS, decoded
from router.api.media.errors import ImageError
from tests.tiny_vision import file_of, picture

RED, BLUE = (255, 0, 0), (0, 0, 255)


def halves() -> Image.Image:
    """Left red, right blue; 16 by 8."""
    image = Image.new("RGB", (16, 8), RED)
    image.paste(BLUE, (8, 0, 16, 8))
    return image


def png(width: int, height: int, data: bytes = b"", colour: int = 2, depth: int = 8) -> bytes:
    """A file without an encoder; `data`: of the IDAT chunk."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_a_file_that_keeps_every_bit_is_decoded_to_its_pixels() -> None:
    image = picture(1)
    for file in (
        file_of(image),
        file_of(image, "BMP"),
        file_of(image, "TIFF"),
        file_of(image, "WEBP", lossless=True),
    ):
        assert np.array_equal(np.asarray(decoded(file)), np.asarray(image))
    assert decoded(file_of(image, "JPEG")).size == image.size


UPRIGHT: Mapping[int, Callable[[Image.Image], Image.Image]] = {
    1: lambda image: image,
    2: lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    3: lambda image: image.transpose(Image.Transpose.ROTATE_180),
    4: lambda image: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
    5: lambda image: image.transpose(Image.Transpose.TRANSPOSE),
    6: lambda image: image.transpose(Image.Transpose.ROTATE_270),
    7: lambda image: image.transpose(Image.Transpose.TRANSVERSE),
    8: lambda image: image.transpose(Image.Transpose.ROTATE_90),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_an_image_is_turned_upright_by_its_exif_orientation(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = picture(2)
    upright = decoded(file_of(stored, "PNG", exif=exif))
    assert np.array_equal(np.asarray(upright), np.asarray(UPRIGHT[orientation](stored)))


def test_damaged_exif_does_not_matter() -> None:
    assert decoded(file_of(halves(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")).size == (16, 8)


def test_transparent_pixels_are_white_whatever_their_colour() -> None:
    image = halves().convert("RGBA")
    image.putpixel((0, 0), (0, 0, 0, 0))
    image.putpixel((1, 0), (0, 0, 0, 127))
    pixels = decoded(file_of(image))
    assert pixels.getpixel((0, 0)) == (255, 255, 255)
    assert pixels.getpixel((1, 0)) == (128, 128, 128)
    assert pixels.getpixel((2, 0)) == RED


def test_palettes_grey_levels_and_inks_become_rgb() -> None:
    palette = halves().convert("P", palette=Image.Palette.ADAPTIVE)
    assert decoded(file_of(palette, "GIF")).getpixel((15, 7)) == BLUE
    transparent = decoded(file_of(palette, "PNG", transparency=palette.getpixel((0, 0))))
    assert (transparent.getpixel((0, 0)), transparent.getpixel((15, 7))) == ((255, 255, 255), BLUE)
    assert decoded(file_of(Image.new("1", (4, 4), 1))).getpixel((0, 0)) == (255, 255, 255)
    assert decoded(file_of(Image.new("LA", (4, 4), (7, 0)))).getpixel((0, 0)) == (255, 255, 255)
    assert decoded(file_of(Image.new("L", (4, 4), 7))).getpixel((0, 0)) == (7, 7, 7)
    inks = decoded(file_of(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG")).getpixel((0, 0))
    assert isinstance(inks, tuple)
    assert inks[0] > 200 > 60 > max(inks[1:])


def test_grey_levels_of_sixteen_bits_are_scaled_and_not_cut() -> None:
    levels = np.array([[0, 0x1234, 0x8080, 0xFFFF]], dtype=np.uint16)
    for kind in ("PNG", "TIFF"):
        pixels = decoded(file_of(Image.fromarray(levels), kind))
        assert [pixels.getpixel((x, 0)) for x in range(4)] == [(v, v, v) for v in (0, 18, 128, 255)]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_taken(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (BLUE, RED, RED)]
    more = {"lossless": True} if kind == "WEBP" else {}
    file = file_of(frames[0], kind, save_all=True, append_images=frames[1:], **more)
    assert decoded(file).getpixel((0, 0)) == BLUE


def test_a_longest_side_shrinks_larger_images_only() -> None:
    assert decoded(file_of(picture(0, (64, 32))), 16).size == (16, 8)
    assert decoded(file_of(picture(0, (8, 4))), 16).size == (8, 4)


GIF_BOMB = b"GIF89a\xff\xff\xff\xff\x80\0\0" + bytes(6) + b",\0\0\0\0\xff\xff\xff\xff\0\x02\x02L\x01\0;"
HOSTILE: Mapping[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "text": (b"hello", "no image"),
    "svg": (
        b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
        "no image",
    ),
    "html": (b"<!DOCTYPE html><html>", "no image"),
    "pdf": (b"%PDF-1.7\n1 0 obj", "no image"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no image"),
    "archive": (b"PK\x03\x04" + bytes(64), "no image"),
    "signature only": (b"\x89PNG\r\n\x1a\n", "no image|damaged"),
    "truncated png": (file_of(picture(3, (200, 200)))[:-4000], "damaged"),
    "truncated jpeg": (file_of(picture(3, (200, 200)), "JPEG")[:3000], "damaged"),
    "truncated webp": (file_of(picture(3, (200, 200)), "WEBP")[:-500], "damaged|no image"),
    "truncated gif": (file_of(picture(3, (200, 200)), "GIF")[:4000], "damaged"),
    "zero pixels": (png(0, 0), "pixels|damaged|no image"),
    "no pixel data": (png(8, 8), "damaged"),
    "wrong pixel data": (png(8, 8, b"\xff" * 40), "damaged"),
    "too little data": (png(64, 64, zlib.compress(bytes(8))), "damaged"),
    "bomb by its header": (png(60_000, 60_000), "3600|60000"),
    "bomb of zeros": (png(25_000, 25_000, zlib.compress(bytes(1 << 20))), "25000"),
    "line of pixels": (png(40_000_000, 1, zlib.compress(bytes(100))), "on a side"),
    "largest sizes": (png(0x7FFFFFFF, 0x7FFFFFFF), "pixels|damaged"),
    "gif of 65535 squared": (
        b"GIF89a\xff\xff\xff\xff\x80\0\0" + bytes(6) + b",\0\0\0\0\xff\xff\xff\xff\0\x02\x02L\x01\0;",
        "65535",
    ),
    "floating point": (file_of(Image.new("F", (4, 4), 0.5), "TIFF"), "floating-point"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(name: str) -> None:
    file, reason = HOSTILE[name]
    with pytest.raises(ImageError, match=reason):
        decoded(file)


def test_every_cut_and_every_changed_byte_of_a_file_is_decoded_or_refused() -> None:
    rng = np.random.default_rng(0)
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        whole = file_of(picture(4, (12, 9)), kind)
        for _ in range(150):
            damaged = bytearray(whole[: rng.integers(1, len(whole) + 1)])
            for at in rng.integers(0, len(damaged), 3):
                damaged[at] = rng.integers(0, 256)
            try:
                image = decoded(bytes(damaged))
            except ImageError:
                continue
            assert image.mode == "RGB"
            assert image.width * image.height <= MAX_PIXELS
