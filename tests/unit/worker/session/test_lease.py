"""A router's lease ends after its silence, and after nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from worker.session.router_session import Lease

LEASE_S = 10.0
BEAT = None
turns = st.floats(0.0, 1.0)


def lived(events: Sequence[float | None]) -> Lease:
    """`BEAT`, or a turn of that length."""
    lease = Lease(LEASE_S)
    for event in events:
        if event is BEAT:
            lease.heard()
        else:
            lease.passed(event)
    return lease


def longest_silence(events: Sequence[float | None]) -> float:
    longest = silence = 0.0
    for event in events:
        silence = 0.0 if event is BEAT else silence + event
        longest = max(longest, silence)
        if longest >= LEASE_S:
            break  # a beat after the end changes nothing
    return longest


@given(st.lists(st.one_of(st.just(BEAT), turns), max_size=80))
def test_it_ends_exactly_after_a_silence_of_its_length(events: list[float | None]) -> None:
    assert lived(events).has_ended == (longest_silence(events) >= LEASE_S)


@given(st.lists(turns, min_size=1), st.lists(st.one_of(st.just(BEAT), turns)))
def test_a_lease_that_has_ended_stays_so(before: list[float], after: list[float | None]) -> None:
    lease = lived([1.0] * int(LEASE_S) + before)
    assert lease.has_ended
    for event in after:
        if event is BEAT:
            lease.heard()
        else:
            lease.passed(event)
        assert lease.has_ended


def test_while_the_worker_itself_is_stopped_no_lease_ends() -> None:
    assert not lived([3600.0]).has_ended
