"""Rows of images between workers, and the tickets for them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest
import torch

from encode_worker.handouts import Encoded, Handouts, NoRows
from encode_worker.rows import RowsExpected, RowsRefused, parts_of, rows_of
from rpc.baton.v1 import worker_pb2

TICKET, ITEM = b"t" * 16, b"i" * 32


def parts(rows: torch.Tensor, **changes: bytes) -> Iterator[worker_pb2.RowsPart]:
    return parts_of(changes.get("item", ITEM), rows, "tag", changes.get("ticket", TICKET))


def expected(rows: torch.Tensor) -> RowsExpected:
    return RowsExpected(ITEM, len(rows), rows.shape[1], rows.dtype, "tag")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_come_as_they_were_sent(dtype: torch.dtype) -> None:
    rows = torch.randn(700, 512).to(dtype)
    sent = list(parts(rows))
    assert len(sent) > 1
    assert torch.equal(rows_of(iter(sent), expected(rows), TICKET), rows)


def test_every_changed_bit_of_the_data_is_noticed() -> None:
    rows = torch.randn(3, 2)
    head, body = parts(rows)
    for index in range(8 * len(body.data)):
        data = bytearray(body.data)
        data[index // 8] ^= 1 << index % 8
        with pytest.raises(RowsRefused) as refused:
            rows_of(iter([head, worker_pb2.RowsPart(data=bytes(data))]), expected(rows), TICKET)
        assert refused.value.reason == "digest"


def test_rows_that_are_cut_off_or_go_on_are_refused() -> None:
    rows = torch.randn(3, 2)
    head, body = parts(rows)
    for data in (b"", body.data[:-1], body.data + b"0"):
        with pytest.raises(RowsRefused, match="bytes"):
            rows_of(iter([head, worker_pb2.RowsPart(data=data)]), expected(rows), TICKET)
    with pytest.raises(RowsRefused, match="another image"):
        rows_of(iter([]), expected(rows), TICKET)


def test_only_the_holder_of_the_ticket_makes_the_digest() -> None:
    rows = torch.randn(3, 2)
    with pytest.raises(RowsRefused, match="bytes"):
        rows_of(parts(rows, ticket=b"u" * 16), expected(rows), TICKET)


def test_a_fetch_may_come_before_its_encode() -> None:
    handouts, encoded = Handouts(), Encoded(ITEM, torch.zeros(1, 1), "")
    early = handouts.take(TICKET)
    handouts.expect([TICKET])
    assert not early.done()
    handouts.give(TICKET, encoded)
    assert early.result(0) is encoded


def test_rows_are_given_once() -> None:
    handouts = Handouts()
    handouts.expect([TICKET])
    handouts.give(TICKET, Encoded(ITEM, torch.zeros(1, 1), ""))
    handouts.take(TICKET).result(0)
    handouts.taken(TICKET)
    with pytest.raises(NoRows, match="before"):
        handouts.take(TICKET).result(0)


def test_a_dropped_or_refused_ticket_ends_its_fetch() -> None:
    handouts, other = Handouts(), b"o" * 16
    handouts.expect([TICKET, other])
    fetches = handouts.take(TICKET), handouts.take(other)
    handouts.refuse(other, "no")
    handouts.drop([TICKET, other])
    for fetch, reason in zip(fetches, ("ended", "no"), strict=True):
        with pytest.raises(NoRows, match=reason):
            fetch.result(0)


def test_a_client_that_left_does_not_disturb_the_encode() -> None:
    handouts = Handouts()
    handouts.expect([TICKET])
    fetch = handouts.take(TICKET)
    fetch.cancel()
    handouts.give(TICKET, Encoded(ITEM, torch.zeros(1, 1), ""))
    with pytest.raises(CancelledError):
        fetch.result(0)


def test_unknown_tickets_are_bounded() -> None:
    handouts = Handouts()
    waiting = [handouts.take(number.to_bytes(16, "big")) for number in range(1024)]
    assert not any(fetch.done() for fetch in waiting)
    with pytest.raises(NoRows, match="too many"):
        handouts.take(TICKET).result(0)
    handouts.taken((5).to_bytes(16, "big"))
    assert not handouts.take(TICKET).done()
