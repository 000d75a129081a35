"""Links are tried and measured before anybody is served."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from router.dispatch.attempts.attempt import Attempt
from router.dispatch.probes.link_check import CheckedLink, LinkBroken, check_links
from router.dispatch.routing.route import Pick
from router.dispatch.sequence import SequenceState
from router.dispatch.waterfall import busy_seconds
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL
from tests.integration.fake_cluster import pair, service
from tests.integration.fake_worker import decode_worker, prefill_worker


async def test_every_prefill_worker_hands_kv_to_a_decode_worker() -> None:
    fabric = {}
    workers = [prefill_worker(f"prefill-{i}", fabric) for i in range(3)]
    workers += [decode_worker(f"decode-{i}", fabric) for i in range(2)]
    async with service(*workers) as served:
        links = await check_links(
            served.registry, served.dispatcher.attempt, served.dispatcher.able, timeout_s=5.0
        )
        await served.settled()
    assert [(link.prefill, link.decode) for link in links] == [
        ("prefill-0", "decode-0"),
        ("prefill-1", "decode-1"),
        ("prefill-2", "decode-0"),
    ]
    assert [(link.num_bytes, link.seconds) for link in links] == [(64, pytest.approx(0.1))] * 3


async def test_every_link_that_requests_may_use_is_opened_before_the_first_of_them() -> None:
    fabric = {}
    workers = [prefill_worker(f"prefill-{i}", fabric) for i in range(3)]
    workers += [decode_worker(f"decode-{i}", fabric) for i in range(2)]
    async with service(*workers) as served:
        opened: list[tuple[str, str]] = []

        def attempt(sequence: SequenceState, pick: Pick) -> Attempt:
            opened.append((pick(ROLE_PREFILL).worker_id, pick(ROLE_DECODE).worker_id))
            return served.dispatcher.attempt(sequence, pick)

        await check_links(served.registry, attempt, served.dispatcher.able, timeout_s=5.0)
        await served.settled()
    assert {*opened} == {(f"prefill-{p}", f"decode-{d}") for p in range(3) for d in range(2)}
    assert len(opened) == 6 + 3, "and three of them are measured"


async def test_where_every_worker_may_prefill_links_are_opened_both_ways() -> None:
    async with service(*pair()) as served:
        opened: list[tuple[str, str]] = []

        def attempt(sequence: SequenceState, pick: Pick) -> Attempt:
            one, other = pick(ROLE_PREFILL).worker_id, pick(ROLE_DECODE).worker_id
            opened.append((one, other))
            if one == "prefill-0":
                return served.dispatcher.attempt(sequence, pick)
            ends: Any = Mock(run=AsyncMock())  # the workers of this test have one side only
            return ends

        await check_links(served.registry, attempt, lambda role: served.registry.sessions(), timeout_s=5.0)
        await served.settled()
    assert opened == [("prefill-0", "decode-0")] * 2 + [("decode-0", "prefill-0")]


async def test_a_link_that_does_not_work_is_named_with_the_reason() -> None:
    async with service(*pair(decode={"refuse_reservation": True})) as served:
        with pytest.raises(LinkBroken, match="from prefill-0 to decode-0: decode-0: as the test wants it"):
            await check_links(
                served.registry, served.dispatcher.attempt, served.dispatcher.able, timeout_s=5.0
            )
        await served.settled()


async def test_a_link_that_hangs_fails_the_link_check() -> None:
    async with service(*pair(prefill={"silent": True})) as served:
        with pytest.raises(LinkBroken, match="no answer within"):
            await check_links(
                served.registry, served.dispatcher.attempt, served.dispatcher.able, timeout_s=0.2
            )
        await served.settled()


def test_spans_that_overlap_count_once() -> None:
    assert busy_seconds([(4.0, 5.0), (0.0, 2.0), (1.0, 3.0), (1.5, 2.5)]) == pytest.approx(4.0)
    assert busy_seconds([]) == 0.0


def test_a_link_tells_bytes_time_and_rate() -> None:
    link = CheckedLink("prefill-0", "decode-1", "nixl", 134_000_000, 0.001)
    assert str(link) == "prefill-0 → decode-1: 134.0 MB of KV over nixl in 1.0 ms, 134.0 GB/s"


def test_a_link_without_a_report_claims_no_rate() -> None:
    assert "not measured" in str(CheckedLink("prefill-0", "decode-1", "nixl", 0, 0.0))


def test_a_detour_between_gpus_of_one_machine_is_called_one() -> None:
    def link(num_bytes: int, seconds: float, *, between_gpus: bool = True) -> CheckedLink:
        return CheckedLink("prefill-0", "decode-1", "nixl", num_bytes, seconds, between_gpus)

    assert str(link(268_000_000, 0.02)).endswith("KV is staged in host memory: see `router doctor`")
    assert not link(268_000_000, 0.002).is_detour
    assert not link(2_000_000, 0.002).is_detour, "messages take that long"
    assert not link(268_000_000, 0.02, between_gpus=False).is_detour


async def test_without_a_decode_worker_there_is_no_link_to_measure() -> None:
    async with service(*pair()) as served:
        [decode] = [m for m in served.registry.members() if m.role == ROLE_DECODE]
        decode.wanted.clear()
        decode.session.dismiss("drained")  # type: ignore[union-attr]
        async with asyncio.timeout(30):
            while decode.session is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        able = served.dispatcher.able
        assert await check_links(served.registry, served.dispatcher.attempt, able, timeout_s=5.0) == []
