"""KV as objects of an S3 store that workers share, and all that may be wrong with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

pytest.importorskip("boto3", reason="the extra object-kv")
pytest.importorskip("moto.server", reason="a package for tests")

from engine.kv.tiers import block_objects
from engine.kv.tiers.block_format import BlockFormat
from engine.kv.tiers.block_objects import BlockObjects, NoObjectStore
from engine.kv.tiers.jobs import StoreLate
from engine.kv.tiers.object_url import ObjectUrl
from tests.object_store import BUCKET, Store, answering, store, trickling
from tests.unit.engine.kv.tiers.test_copies import BYTES, KEY, OTHER_KEY, Bytes, content


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture
def bucket() -> Iterator[Store]:
    with store() as opened:
        yield opened


def opened(url: str, identity: str = "model", **settings: Any) -> BlockObjects:
    return BlockObjects(ObjectUrl.parse(url), identity, BYTES, **settings)


def read(objects: BlockObjects) -> tuple[int | None, Bytes]:
    into = np.zeros(BYTES, dtype=np.uint8)
    return objects.read(KEY, 7, into), into


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://b", ObjectUrl("b", "")),
        ("s3://b/some/where/", ObjectUrl("b", "some/where/")),
        ("s3://b/p?endpoint=http://h:9000", ObjectUrl("b", "p/", "http://h:9000")),
    ],
)
def test_urls(text: str, url: ObjectUrl) -> None:
    assert ObjectUrl.parse(text) == url


@pytest.mark.parametrize("text", ["b/p", "http://b/p", "s3:///p", "s3://b?region=x", "s3://b?endpoint=h:9"])
def test_urls_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"s3://BUCKET|is not a URL"):
        ObjectUrl.parse(text)


def test_what_one_worker_writes_another_finds_and_reads(bucket: Store) -> None:
    first, second = opened(bucket.url), opened(bucket.url)
    assert second.look() == []
    first.write(KEY, 7, 99, content(1))
    assert first.look() == []  # its own
    assert second.look() == [(KEY, 7)]
    assert second.look() == []
    digest, found = read(second)
    assert digest == 99
    assert (found == content(1)).all()
    first.remove(KEY, 7)
    assert bucket.names() == []
    assert read(second)[0] is None


def test_objects_of_another_model_are_not_found(bucket: Store) -> None:
    opened(bucket.url).write(KEY, 7, 99, content(1))
    other = opened(bucket.url, "another")
    assert other.look() == []
    assert read(other)[0] is None
    (name,) = bucket.names()
    good = bucket.content(name)
    bucket.put(other._name(KEY, 7), good)  # a copy under the other's name
    assert other.look() == [(KEY, 7)]
    assert read(other)[0] is None


def test_a_damaged_header_or_another_length_is_a_miss(bucket: Store) -> None:
    objects = opened(bucket.url)
    objects.write(KEY, 7, 99, content(1))
    (name,) = bucket.names()
    good = bucket.content(name)
    header = len(good) - BYTES
    for position in range(0, header, 7):
        bucket.put(name, good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        assert read(objects)[0] is None, position
    for bad in (b"", good[:header], good[:-1], good + b"x"):
        bucket.put(name, bad)
        assert read(objects)[0] is None
        assert opened(bucket.url).look() == []
    bucket.put(name, good)
    assert read(objects)[0] == 99
    assert opened(bucket.url).look() == [(KEY, 7)]


def test_a_dead_store_is_left_alone_for_a_while_and_serves_again(bucket: Store) -> None:
    now = [0.0]
    objects = opened(bucket.url, clock=lambda: now[0])
    objects.write(KEY, 7, 99, content(1))
    bucket.stop()
    with pytest.raises(StoreLate):
        read(objects)
    bucket.start()
    with pytest.raises(StoreLate, match="a moment ago"):
        objects.write(OTHER_KEY, 1, 1, content(2))
    now[0] += block_objects._SILENCE_S
    assert objects.look() == [(KEY, 7)]  # it is not known to be lost
    assert read(objects)[0] == 99


def test_a_worker_starts_without_the_store(bucket: Store) -> None:
    bucket.stop()
    objects = opened(bucket.url)
    with pytest.raises(StoreLate):
        objects.look()


def test_an_object_that_trickles_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_objects, "_DEADLINE_S", 0.5)
    monkeypatch.setattr(block_objects, "_CHUNK_BYTES", 4)
    header = BlockFormat("model", BYTES).header(KEY, 7, 99)
    with trickling(header + content(1).tobytes(), at_once=len(header)) as url:
        objects = opened(url)
        began = time.monotonic()
        with pytest.raises(StoreLate, match="longer"):
            read(objects)
        assert time.monotonic() - began < 5  # all of it would take 10 s


def test_a_store_without_the_bucket_is_refused(bucket: Store) -> None:
    with pytest.raises(NoObjectStore, match="Not Found"):
        opened(bucket.url.replace(f"s3://{BUCKET}", "s3://other"))


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", b"HTTP/1.1 200 OK\r\n\r\n", b"nonsense\r\n\r\n"],
    ids=["not XML", "no length", "not HTTP"],
)
def test_what_is_no_store_at_all_is_a_miss_or_late(answer: bytes) -> None:
    """Such as the page of a proxy."""
    now = [0.0]
    with answering(answer) as url:
        objects = opened(url, clock=lambda: now[0])
        with suppress(StoreLate):
            assert objects.look() == []
        now[0] += block_objects._SILENCE_S
        with suppress(StoreLate):
            assert read(objects)[0] is None
        now[0] += block_objects._SILENCE_S
        with suppress(StoreLate):
            objects.write(KEY, 7, 99, content(1))
        now[0] += block_objects._SILENCE_S
        objects.remove(KEY, 7)
        objects.close()


def test_an_object_that_was_removed_is_found_when_another_worker_writes_it(bucket: Store) -> None:
    first, second = opened(bucket.url), opened(bucket.url)
    first.write(KEY, 7, 99, content(1))
    first.remove(KEY, 7)  # its KV was damaged
    second.write(KEY, 7, 99, content(1))
    assert first.look() == [(KEY, 7)]
    assert first.look() == []
    first.forget(KEY, 7)
    assert first.look() == [(KEY, 7)]


class Listed:
    """A client whose bucket has any objects, by the hour in which they were written."""

    def __init__(self, objects: BlockObjects) -> None:
        self.hours: dict[int, float] = {}
        self.fails_after = -1
        self._objects = objects

    def get_paginator(self, _: str) -> Any:
        return self

    def paginate(self, **_: str) -> Iterator[dict[str, Any]]:
        for number, (block, hour) in enumerate(self.hours.items()):
            if number == self.fails_after:
                raise OSError("the store is gone")
            yield {
                "Contents": [
                    {
                        "Key": self._objects._name(KEY, block),
                        "Size": self._objects._format.total_bytes,
                        "LastModified": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hour),
                    }
                ]
            }


@pytest.fixture
def listed(bucket: Store) -> tuple[BlockObjects, Listed]:
    now = [0.0]
    objects = opened(bucket.url, clock=lambda: now[0])
    objects._client = client = Listed(objects)
    return objects, client


def test_a_worker_remembers_only_the_newest_objects_of_a_bucket(
    listed: tuple[BlockObjects, Listed], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, client = listed
    monkeypatch.setattr(block_objects, "_FOUND_AT_A_TIME", 20)
    client.hours = {block: block / 100 for block in range(100)}
    found: list[int] = []
    while some := objects.look():
        assert len(some) <= 20
        found += [block for _, block in some]
    assert found == list(range(100))
    assert len(objects._known) <= 4, "those of the last two minutes"
    assert objects.look() == []
    client.hours = {500: 0.995, 7: 2.0} | client.hours  # the second was deleted, and another worker wrote it
    client.hours[7] = 2.0
    assert [block for _, block in objects.look()] == [500, 7]
    assert objects.look() == []


def test_an_old_object_that_could_not_be_read_is_found_again_once(
    listed: tuple[BlockObjects, Listed],
) -> None:
    objects, client = listed
    client.hours = {block: block for block in range(10)}
    assert len(objects.look()) == 10
    objects.forget(KEY, 3)
    objects.forget(KEY, 99)  # it was deleted
    assert [block for _, block in objects.look()] == [3]
    assert objects.look() == []
    assert not objects._again


def test_what_was_listed_before_the_store_failed_is_found(listed: tuple[BlockObjects, Listed]) -> None:
    objects, client = listed
    client.hours = {block: block for block in range(10)}
    client.fails_after = 4
    assert [block for _, block in objects.look()] == [0, 1, 2, 3]
    with pytest.raises(StoreLate):
        objects.look()
