"""KV pages as objects of an S3 bucket, which all workers of a model share.

Names and bytes are those of files (`block_format`). A worker knows what it has written, and what it finds
when it lists the bucket. Objects are not deleted to make room, since others may use them: that is for a
lifecycle rule of the bucket. One whose KV turns out to be wrong is deleted.

A store that does not answer in time says nothing about a page, and is left alone for a while then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from common.block_hash import BlockHash
from common.block_key import PageKey
from engine.kv_tiers.block_format import BlockFormat
from engine.kv_tiers.jobs import StoreLate
from engine.kv_tiers.object_url import ObjectUrl

log = logging.getLogger(__name__)

_CONNECT_S: Final = 1.0
_READ_S: Final = 2.0
"""Without a byte."""
_DEADLINE_S: Final = 5.0
"""For a whole object."""
_SILENCE_S: Final = 10.0
"""After it did not answer, the store is not asked for this long."""
_CHUNK_BYTES: Final = 256 << 10
_FOUND_AT_A_TIME: Final = 2000
"""So that a step does not wait for the accounts of more."""
_MISSING: Final = ("NoSuchKey", "404")


class NoObjectStore(Exception):
    """The store refuses what it is asked, or its client is not installed."""


class BlockObjects:
    """For any number of threads; of one page one at a time."""

    readers: Final = 8
    writers: Final = 4
    look_s: Final = 30.0

    def __init__(
        self,
        url: ObjectUrl,
        identity: str,
        page_bytes: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises NoObjectStore. A store that cannot be reached may be back later."""
        try:
            import boto3  # an optional dependency, and slow to import
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError
            from botocore.parsers import ResponseParserError
        except ImportError as error:
            raise NoObjectStore(f"{error}; install baton-llm[object-kv]") from None
        self._format = BlockFormat(identity, page_bytes)
        self._bucket = url.bucket
        self._prefix = f"{url.prefix}{self._format.folder}/"
        self._clock = clock
        self._silent_until = -1.0
        self._known: set[tuple[PageKey, BlockHash]] = set()
        self._found: deque[tuple[PageKey, BlockHash]] = deque()
        self._lock = threading.Lock()
        self._refusal: Final = ClientError
        self._troubles: Final = (BotoCoreError, HTTPClientError, ResponseParserError, OSError)
        config = Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            retries={"total_max_attempts": 1},
            max_pool_connections=self.readers + self.writers + 1,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        try:
            self._client: Any = boto3.session.Session().client("s3", endpoint_url=url.endpoint, config=config)
            self._client.head_bucket(Bucket=self._bucket)
        except ClientError as error:
            raise NoObjectStore(str(error)) from None
        except (ConnectionError, HTTPClientError, OSError) as error:
            log.warning("the object store does not answer yet: %s", error)
        except (BotoCoreError, ValueError) as error:  # such as no credentials
            raise NoObjectStore(str(error)) from None

    def scan(self) -> list[tuple[PageKey, BlockHash]]:
        """Nothing: `look` finds what there is, while the worker serves."""
        return []

    def look(self) -> list[tuple[PageKey, BlockHash]]:
        """Objects that were not known, a few thousand at most. Raises StoreLate."""
        if not self._found:
            with self._asking():
                self._list()
        return [self._found.popleft() for _ in range(min(len(self._found), _FOUND_AT_A_TIME))]

    def write(self, key: PageKey, hash: BlockHash, digest: int, content: npt.NDArray[np.uint8]) -> None:
        """Raises StoreLate."""
        body = self._format.header(key, hash, digest) + content.tobytes()
        with self._asking():
            self._client.put_object(Bucket=self._bucket, Key=self._name(key, hash), Body=body)
        with self._lock:
            self._known.add((key, hash))

    def read(self, key: PageKey, hash: BlockHash, into: npt.NDArray[np.uint8]) -> int | None:
        """Read an object's KV, and return the digest that it should have; None: this is not the object.

        Raises StoreLate.
        """
        digest = None
        try:
            with self._asking():
                digest = self._read(key, hash, into)
        finally:
            if digest is None:
                self.forget(key, hash)
        return digest

    def forget(self, key: PageKey, hash: BlockHash) -> None:
        """It is found again if it is there."""
        with self._lock:
            self._known.discard((key, hash))

    def remove(self, key: PageKey, hash: BlockHash) -> None:
        self.forget(key, hash)  # another worker may write it again
        try:
            with self._asking():
                self._client.delete_object(Bucket=self._bucket, Key=self._name(key, hash))
        except StoreLate as error:
            log.warning("cannot delete an object: %s", error)

    def close(self) -> None:
        self._client.close()

    # ------------------------------------------------------------------------------ inside

    def _read(self, key: PageKey, hash: BlockHash, into: npt.NDArray[np.uint8]) -> int | None:
        ends = self._clock() + _DEADLINE_S
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._name(key, hash))
        except self._refusal as error:
            if error.response.get("Error", {}).get("Code") in _MISSING:
                return None
            raise
        body = answer["Body"]
        try:
            if answer.get("ContentLength") != self._format.total_bytes:
                return None
            digest = self._format.digest_of(body.read(self._format.header_bytes), key, hash)
            rest = memoryview(into.data).cast("B")
            while digest is not None and rest:
                if self._clock() > ends:
                    raise TimeoutError(f"an object took longer than {_DEADLINE_S:g} s")
                part = body.read(min(len(rest), _CHUNK_BYTES))
                if not part:
                    raise OSError("an object ended early")
                rest[: len(part)] = part
                rest = rest[len(part) :]
            return digest
        finally:
            body.close()

    def _list(self) -> None:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix
        )
        for page in pages:
            for listed in page.get("Contents", ()):
                name = listed["Key"].rpartition("/")[2]
                found = self._format.parsed(name)
                if found is None or listed["Size"] != self._format.total_bytes:
                    continue
                with self._lock:
                    if found not in self._known:
                        self._known.add(found)
                        self._found.append(found)

    def _name(self, key: PageKey, hash: BlockHash) -> str:
        return self._prefix + self._format.path(key, hash)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Turns what may go wrong with a call into StoreLate."""
        if self._clock() < self._silent_until:
            raise StoreLate("the object store did not answer a moment ago")
        try:
            yield
        except (self._refusal, *self._troubles) as error:
            if self._clock() >= self._silent_until:
                log.warning("the object store fails: %s", error)
            self._silent_until = self._clock() + _SILENCE_S
            raise StoreLate(str(error)) from None
