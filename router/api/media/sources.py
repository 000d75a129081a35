"""From an image as a request names it to the bytes of its file."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from router.api.media.errors import ImageError
from router.api.media.fetch import fetched

MAX_FILE_BYTES: Final = 64 << 20
_INLINE: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class AllowedSources:
    """Where images may come from besides the request itself."""

    hosts: Collection[str] = ()
    """Names and addresses, in lower case."""
    folder: Path | None = None

    async def file(self, url: str) -> bytes:
        """The file that `url` is or names. Raises ImageError."""
        scheme = url[:8].partition(":")[0].lower()
        if scheme == "data":
            return _inline(url) if len(url) < _INLINE else await asyncio.to_thread(_inline, url)
        if scheme in ("http", "https"):
            return await fetched(url, self.hosts, MAX_FILE_BYTES)
        if scheme == "file":
            return await asyncio.to_thread(self._local, url)
        raise ImageError("its URL is none of data:, https:, http: and file:")

    def _local(self, url: str) -> bytes:
        if self.folder is None:
            raise ImageError("files are not read; --allowed-local-media-path allows it")
        try:
            parts = urlsplit(url)
            path = Path(os.path.realpath(unquote(parts.path)))
        except ValueError:
            raise ImageError("its URL is not valid") from None
        if parts.netloc not in ("", "localhost") or not path.is_relative_to(os.path.realpath(self.folder)):
            raise ImageError("the file is not below --allowed-local-media-path")
        try:
            # Not a FIFO or a device, of which opening or reading might not end.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
                about = os.fstat(file.fileno())
                if not stat.S_ISREG(about.st_mode):
                    raise ImageError("it is no regular file")
                if about.st_size > MAX_FILE_BYTES:
                    raise ImageError(f"the file has more than {MAX_FILE_BYTES} bytes")
                return file.read(MAX_FILE_BYTES)
        except (OSError, ValueError):
            raise ImageError("the file cannot be read") from None


def _inline(url: str) -> bytes:
    about, comma, content = url.partition(",")
    if not comma:
        raise ImageError("its data: URL has no comma")
    if not about.endswith(";base64"):
        return unquote_to_bytes(content)
    try:
        return base64.b64decode(content.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        raise ImageError("its data: URL is not base64") from None
