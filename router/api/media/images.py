"""Images of requests: files to arrays, in processes with limits, and a cache of what they became."""

from __future__ import annotations

import asyncio
import json
import sys
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from common.limits.process import LimitedProcess, LimitExceeded, ProcessTurns
from router.api.media.errors import ImageError, ImageProcessorFailed
from router.api.media.facts import ProcessedImage, ProcessorFacts
from router.api.media.marks import ImageSource
from router.api.media.sources import AllowedSources
from router.errors import InvalidRequest
from rpc.baton.v1 import worker_pb2

MAX_REQUEST_BYTES: Final = 256 << 20
"""Arrays of one request."""
_LOW: Final = 512
"""Longest side of an image whose `detail` is low, as OpenAI's."""
_PATIENCE_S: Final = 120.0
_START_S: Final = 900.0
"""For a process to load its libraries; 4 s on an idle machine."""
_MOST_NAMES: Final = 10_000
_Key = bytes


@dataclass(frozen=True, slots=True)
class ImageSettings:
    limit: int = 32
    """Images of a request."""
    processes: int = 2
    cache_bytes: int = 1 << 30
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the image processor."""
    arrays: Sequence[str] = ()
    """Outputs of the processor that workers take; empty: all."""
    allowed: AllowedSources = field(default_factory=AllowedSources)
    separate_tenants: bool = False
    """Whether images of one tenant are cached for it alone."""


class Images:
    """The image processor of a model. Needs `start`."""

    facts: ProcessorFacts

    def __init__(self, folder: Path, settings: ImageSettings) -> None:
        self._settings: Final = settings
        command = (
            sys.executable,
            "-m",
            "router.api.media.process",
            str(folder),
            json.dumps([dict(settings.options), list(settings.arrays)]),
        )
        processes = [
            LimitedProcess(
                command,
                too_long="it takes too much time to decode",
                too_large="it takes too much memory to decode",
                patience_s=_PATIENCE_S,
            )
            for _ in range(settings.processes)
        ]
        self._turns: Final = ProcessTurns(processes, share=max(1, settings.processes - 1))
        self._cache: Final[OrderedDict[_Key, ProcessedImage]] = OrderedDict()
        self._cached_bytes = 0
        self._named: Final[OrderedDict[tuple[str, str], _Key]] = OrderedDict()
        """Keys of images by tenant and the client's name."""

    async def start(self) -> None:
        """Load the processor, in seconds. Raises ImageProcessorFailed."""
        starts = (process.ask(b"", _START_S) for process in self._turns.processes)
        answers = await asyncio.gather(*starts)
        for answer in answers:
            found = json.loads(answer)
            if "error" in found:
                raise ImageProcessorFailed(f"{found['error']}; --language-model-only serves text without it")
            self.facts = ProcessorFacts(**found)

    async def close(self) -> None:
        await self._turns.close()

    async def processed(self, sources: Sequence[ImageSource], tenant: str) -> list[ProcessedImage]:
        """In the order of `sources`. `tenant`: see `ProcessTurns.process`. Raises InvalidRequest.

        The files of a request are processed at once, in as many processes as its tenant may use.
        """
        if len(sources) > self._settings.limit:
            raise InvalidRequest(
                f"The request has {len(sources)} images; at most {self._settings.limit} are possible"
                " (--limit-mm-per-prompt).",
                param="messages",
            )
        files = list({(one.url, one.detail): one for one in sources if one.url}.values())
        answers = await asyncio.gather(*(self._of_file(one, tenant) for one in files), return_exceptions=True)
        of_files = {(one.url, one.detail): answer for one, answer in zip(files, answers, strict=True)}
        found: list[ProcessedImage] = []
        for number, source in enumerate(sources, start=1):
            try:
                if not source.url:
                    found.append(self._of_name(source.uuid, tenant))
                    continue
                answer = of_files[source.url, source.detail]
                if isinstance(answer, BaseException):
                    raise answer
                key, image = answer
                self._name(source.uuid, tenant, key)
                found.append(image)
            except (ImageError, LimitExceeded) as error:
                raise InvalidRequest(
                    f"Image {number} of the request cannot be used: {error}.",
                    param="messages",
                    code="invalid_image",
                ) from None
        if sum(_bytes_of(image) for image in found) > MAX_REQUEST_BYTES:
            raise InvalidRequest(
                f"The request's images have more than {MAX_REQUEST_BYTES >> 20} MiB of pixels as the model"
                " takes them; send fewer or smaller ones, or detail: low.",
                param="messages",
            )
        return found

    def _of_name(self, uuid: str, tenant: str) -> ProcessedImage:
        """Raises ImageError."""
        image = self._cache.get(self._named.get((tenant, uuid), b""))
        if image is None:
            raise ImageError(f"no image with the uuid {uuid[:100]!r} is cached; send it again")
        return image

    def _name(self, uuid: str, tenant: str, key: _Key) -> None:
        if uuid:
            self._named[tenant, uuid] = key
            if len(self._named) > _MOST_NAMES:
                self._named.popitem(last=False)

    async def _of_file(self, source: ImageSource, tenant: str) -> tuple[_Key, ProcessedImage]:
        """Raises ImageError, LimitExceeded."""
        file = await self._settings.allowed.file(source.url)
        side = str(longest_side(source.detail) or 0).encode()
        question = b"%b\n%b" % (side, file)
        of = tenant.encode() if self._settings.separate_tenants else b""
        key = await asyncio.to_thread(lambda: blake2b(question, digest_size=32, salt=_salt(of)).digest())
        image = self._known(key)
        if image is None:
            async with self._turns.process(tenant) as process:
                image = self._known(key) or _image(await process.ask(question))
            self._keep(key, image)
        return key, image

    def _known(self, key: _Key) -> ProcessedImage | None:
        image = self._cache.get(key)
        if image is not None:
            self._cache.move_to_end(key)
        return image

    def _keep(self, key: _Key, image: ProcessedImage) -> None:
        if key in self._cache:
            return
        self._cache[key] = image
        self._cached_bytes += _bytes_of(image)
        while self._cached_bytes > self._settings.cache_bytes and self._cache:
            _, gone = self._cache.popitem(last=False)
            self._cached_bytes -= _bytes_of(gone)


def longest_side(detail: str) -> int | None:
    """The side to which an image is shrunk, in pixels; None: it is not."""
    return _LOW if detail == "low" else None


def _salt(tenant: bytes) -> bytes:
    return blake2b(tenant, digest_size=16).digest()


def _bytes_of(image: ProcessedImage) -> int:
    return sum(len(each.data) for each in image.item.arrays) + 8 * len(image.keys) + len(image.text)


def _image(answer: bytes) -> ProcessedImage:
    """Raises ImageError."""
    line, _, content = answer.partition(b"\n")
    about = json.loads(line)
    if "error" in about:
        raise ImageError(about["error"])
    keys = array("q", content[: about["keys"]])
    item = worker_pb2.MediaItem.FromString(content[about["keys"] :])
    return ProcessedImage(about["text"], about["rows"], keys, item)
