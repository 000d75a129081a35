"""KV pages as objects of an S3 bucket, which all workers of a model share.

Names and bytes are those of files (`block_format`). A worker lists the bucket for what others have written:
all of it at first, and then what is newer than the listing before, so that it need not remember the rest.
Objects are not deleted to make room, since others may use them: that is for a lifecycle rule of the bucket.
One whose KV turns out to be wrong is deleted.

A store that does not answer in time says nothing about a page, and is left alone for a while then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from common.block_hash import BlockHash
from common.block_key import PageKey
from engine.kv.tiers.block_format import BlockFormat
from engine.kv.tiers.jobs import StoreLate
from engine.kv.tiers.object_url import ObjectUrl

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
_LOOK_S: Final = 30.0
_LISTING_SHARE: Final = 0.1
"""Largest part of its time for which a worker lists the bucket, with a call for each thousand objects."""
_RECENT: Final = timedelta(minutes=2)
"""An object that is older than the newest one by more was in the listing before."""
_MISSING: Final = ("NoSuchKey", "404")


_Object: TypeAlias = tuple[PageKey, BlockHash]


@dataclass(slots=True)
class _Listing:
    pages: Iterator[Any]
    known: set[_Object]
    """What was known when it began, and what was to be found again."""
    again: set[_Object]
    recent: dict[_Object, datetime] = field(default_factory=dict)
    """Objects by the time when they were written, those that are not much older than the newest one."""
    newest: datetime = datetime.min.replace(tzinfo=UTC) + _RECENT
    seconds: float = 0.0
    _most: int = _FOUND_AT_A_TIME

    def add(self, listed: _Object, written: datetime) -> None:
        """O(1), amortized."""
        self.newest = max(self.newest, written)
        if written >= self.newest - _RECENT:
            self.recent[listed] = written
        if len(self.recent) > self._most:
            self.forget_old()
            self._most = max(_FOUND_AT_A_TIME, 2 * len(self.recent))

    def forget_old(self) -> None:
        since = self.newest - _RECENT
        self.recent = {listed: written for listed, written in self.recent.items() if written >= since}


class NoObjectStore(Exception):
    """The store refuses what it is asked, or its client is not installed."""


class BlockObjects:
    """For any number of threads; of one page one at a time."""

    readers: Final = 8
    writers: Final = 4

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
            raise NoObjectStore(f"{error}; in a checkout of Baton: pip install '.[object-kv]'") from None
        self._format = BlockFormat(identity, page_bytes)
        self._bucket = url.bucket
        self._prefix = f"{url.prefix}{self._format.folder}/"
        self._clock = clock
        self._silent_until = -1.0
        self.look_s = _LOOK_S
        """Between two listings."""
        self._listing: _Listing | None = None
        """The one under way."""
        self._since = datetime.min.replace(tzinfo=UTC)
        """Objects that are older, by the store's clock, are known."""
        self._known: set[_Object] = set()
        """Others that are: found in the last listing, or written here since it began."""
        self._again: set[_Object] = set()
        """To be found once more, however old they are."""
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
        """Objects that were not known, a few thousand at most; the next call goes on there.

        Raises StoreLate.
        """
        listing, self._listing = self._listing or self._listed_anew(), None
        found: list[_Object] = []
        began = self._clock()
        try:
            with self._asking():
                for page in listing.pages:
                    found += self._unknown(page, listing)
                    if len(found) >= _FOUND_AT_A_TIME:
                        self._listing = listing
                        break
        except StoreLate:
            if not found:
                raise
            return found  # the next listing begins anew
        listing.seconds += self._clock() - began
        if self._listing is None:
            self._listed(listing)
        return found

    def write(self, key: PageKey, hash: BlockHash, digest: int, *content: npt.NDArray[np.uint8]) -> None:
        """Raises StoreLate."""
        body = b"".join([self._format.header(key, hash, digest), *[part.tobytes() for part in content]])
        with self._asking():
            self._client.put_object(Bucket=self._bucket, Key=self._name(key, hash), Body=body)
        with self._lock:
            self._known.add((key, hash))

    def read(self, key: PageKey, hash: BlockHash, *into: npt.NDArray[np.uint8]) -> int | None:
        """Read an object's content, and return the digest that it should have; None: this is not the object.

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
            self._again.add((key, hash))

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

    def _read(self, key: PageKey, hash: BlockHash, into: Sequence[npt.NDArray[np.uint8]]) -> int | None:
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
            for whole in into if digest is not None else ():
                self._fill(memoryview(whole.data).cast("B"), body, ends)
            return digest
        finally:
            body.close()

    def _fill(self, rest: memoryview, body: Any, ends: float) -> None:
        while rest:
            if self._clock() > ends:
                raise TimeoutError(f"an object took longer than {_DEADLINE_S:g} s")
            part = body.read(min(len(rest), _CHUNK_BYTES))
            if not part:
                raise OSError("an object ended early")
            rest[: len(part)] = part
            rest = rest[len(part) :]

    def _listed_anew(self) -> _Listing:
        paginator = self._client.get_paginator("list_objects_v2")
        pages = iter(paginator.paginate(Bucket=self._bucket, Prefix=self._prefix))
        with self._lock:
            return _Listing(pages, self._known.copy(), self._again.copy())

    def _unknown(self, page: Any, listing: _Listing) -> list[_Object]:
        """Objects of a listing's page that the index lacks."""
        found: list[_Object] = []
        for listed in page.get("Contents", ()):
            name, written = listed["Key"].rpartition("/")[2], listed["LastModified"]
            parsed = self._format.parsed(name)
            if parsed is None or listed["Size"] != self._format.total_bytes:
                continue
            with self._lock:
                if parsed in self._again or not (written < self._since or parsed in self._known):
                    self._again.discard(parsed)
                    found.append(parsed)
            listing.add(parsed, written)
        return found

    def _listed(self, listing: _Listing) -> None:
        """A listing is complete."""
        self.look_s = max(_LOOK_S, listing.seconds / _LISTING_SHARE)
        listing.forget_old()
        with self._lock:
            self._since = max(self._since, listing.newest - _RECENT)
            self._known = (listing.recent.keys() - self._again) | (self._known - listing.known)
            self._again -= listing.again  # the others of these are gone

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
