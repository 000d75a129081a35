"""A host that vanishes without a word: two network namespaces, and a cable that is cut between them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kv_transfer import Drained, Ready, ReceiveFailed
from kv_transfer.errors import RightsRemain
from tests.faults.kv.test_kv_peer_faults import NUM_TOKENS, PAGES, TooLate, begin, complete, conclusive
from tests.faults.support.kv_process import LAYOUT, Host, Remote
from tests.faults.support.two_hosts import TwoHosts, why_not
from tests.kv_support import final_for

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
TCP = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "cable"}
MENDED_S = 30.0


@pytest.fixture
def kind() -> str:
    return "nixl"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def interrupted(stack: ExitStack, kind: str) -> tuple[TwoHosts, Remote, Remote, Host]:
    """Two workers on two hosts, and a handoff in whose first write the cable is cut. Raises TooLate."""
    hosts = stack.enter_context(TwoHosts())
    there, here = (Host(a, n) for a, n in zip(hosts.addresses, hosts.names, strict=True))
    receiver = stack.enter_context(Remote("receiver", kind, "d-1", 2, here, **TCP))
    sender = stack.enter_context(Remote("sender", kind, "p-1", 1, there, **TCP))
    complete(sender, receiver, 9)
    sender.call("fill", PAGES, 5)
    sender.digests([0])  # it has filled them
    begin(sender, receiver, timeout_s=0.5)
    sender.call("finish", 1, PAGES, NUM_TOKENS, final_for(NUM_TOKENS))
    time.sleep(0.02)
    hosts.cut()
    event = receiver.event()
    if isinstance(event, Ready) or not hosts.unsent(0):
        raise TooLate(event)
    assert isinstance(event, ReceiveFailed)
    return hosts, sender, receiver, there


def fenced(receiver: Remote) -> None:
    """Its pages are in quarantine until the lost sender is fenced, and are reusable then."""
    with pytest.raises(TimeoutError):
        receiver.event(timeout_s=0.5)
    receiver.call("fence", 1, "its node is dead")
    assert receiver.event() == Drained(1)
    receiver.call("fill", PAGES, 6)


@conclusive
def test_pages_of_a_host_without_power_are_free_after_a_fence(stack: ExitStack, kind: str) -> None:
    hosts, sender, receiver, there = interrupted(stack, kind)
    sender.kill()
    fenced(receiver)
    hosts.mend()
    successor = stack.enter_context(Remote("sender", kind, "p-2", 3, there, **TCP))
    complete(successor, receiver, 2)


@conclusive
def test_a_fenced_host_that_comes_back_with_a_write_under_way_changes_no_page(
    stack: ExitStack, kind: str
) -> None:
    hosts, sender, receiver, _ = interrupted(stack, kind)
    fenced(receiver)
    before = receiver.digests(PAGES)
    hosts.mend()
    deadline = time.monotonic() + MENDED_S
    while hosts.unsent(0):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert receiver.digests(PAGES) == before
    pages = PAGES[:4]
    receiver.call("reserve", 3, sender.peer, pages, 0, len(pages) * LAYOUT.page_size, 5.0, request_digest=0)
    refused = receiver.event()
    assert isinstance(refused, ReceiveFailed)
    assert "only a restarted one" in refused.reason


@pytest.mark.parametrize("kind", ["ucxx"])
@conclusive
def test_a_receiver_whose_transport_does_not_close_ends_instead_of_freeing_pages(
    stack: ExitStack, kind: str
) -> None:
    _, sender, receiver, _ = interrupted(stack, kind)
    sender.kill()
    receiver.call("fence", 1, "its node is dead")
    assert isinstance(receiver.event(), RightsRemain)
