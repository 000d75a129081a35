"""How many workers there should be: bounds, cooldown, and zero."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.command.admin.scaling_policy import Pressure, ScalingPolicy
from router.config.flags.text_settings import Bounds

COOLDOWN_S = 60.0
BOUNDS = st.tuples(st.integers(0, 4), st.integers(1, 9)).map(lambda pair: Bounds(min(pair), max(pair)))
SHARES = st.floats(0.0, 4.0)
PRESSURES = st.builds(
    Pressure, queue=SHARES, room=SHARES, ttft=SHARES, itl=SHARES, requests=st.integers(0, 3)
)
LOOKS = st.tuples(PRESSURES, st.booleans(), st.floats(0.0, 90.0))
ONE_TO_EIGHT = Bounds(1, 8)


def decided(pressure: Pressure, desired: int, ready: int | None = None, bounds: Bounds = ONE_TO_EIGHT) -> int:
    """The first decision, without a cooldown."""
    decision = ScalingPolicy(bounds, 0.0).decide(pressure, desired, desired if ready is None else ready, 0.0)
    return desired if decision is None else decision.number


def test_it_grows_by_what_queue_or_kv_lack_and_at_most_to_double() -> None:
    assert decided(Pressure(queue=1.4, requests=9), 5) == 7
    assert decided(Pressure(room=9.0, requests=9), 3) == 6
    assert decided(Pressure(room=9.0, requests=9), 5) == 8


def test_a_late_answer_is_a_reason_for_one_more() -> None:
    assert decided(Pressure(ttft=3.0, requests=9), 3) == 4
    assert decided(Pressure(itl=1.1, requests=9), 3) == 4


def test_workers_that_load_are_waited_for() -> None:
    assert decided(Pressure(queue=3.0, requests=9), 3, ready=2) == 3


def test_it_shrinks_only_if_the_others_suffice_with_room_to_spare() -> None:
    assert decided(Pressure(room=0.3, requests=9), 2) == 1
    assert decided(Pressure(room=0.4, requests=9), 2) == 2
    assert decided(Pressure(itl=1.0, requests=9), 2) == 1, "full steps keep no worker"


def test_nothing_but_a_request_starts_the_first_worker_and_none_keeps_the_last() -> None:
    to_zero = Bounds(0, 2)
    assert decided(Pressure(), 0, bounds=to_zero) == 0
    assert decided(Pressure(requests=1), 0, bounds=to_zero) == 1
    assert decided(Pressure(requests=1), 1, bounds=to_zero) == 1
    assert decided(Pressure(), 1, bounds=to_zero) == 0


def test_a_worker_leaves_after_the_cooldown_and_the_next_after_another_one() -> None:
    policy, desired, left = ScalingPolicy(Bounds(1, 8), COOLDOWN_S), 3, []
    for now in range(200):
        decision = policy.decide(Pressure(), desired, desired, float(now))
        if decision is not None:
            desired = decision.number
            left.append(now)
    assert left == [60, 121]


def test_one_busy_moment_begins_the_cooldown_anew() -> None:
    policy = ScalingPolicy(Bounds(1, 8), COOLDOWN_S)
    for now in range(59):
        assert policy.decide(Pressure(), 2, 2, float(now)) is None
    assert policy.decide(Pressure(room=0.9, requests=1), 2, 2, 59.0) is None
    for now in range(60, 120):
        assert policy.decide(Pressure(), 2, 2, float(now)) is None
    assert policy.decide(Pressure(), 2, 2, 120.0) is not None


@given(
    BOUNDS,
    st.integers(0, 12),
    st.lists(st.tuples(PRESSURES, st.booleans(), st.floats(0.0, 90.0)), max_size=40),
)
def test_any_load_keeps_the_number_within_bounds_and_never_shrinks_it_soon(
    bounds: Bounds, desired: int, looks: list[tuple[Pressure, bool, float]]
) -> None:
    policy, now, changed_at = ScalingPolicy(bounds, COOLDOWN_S), 0.0, -1e9
    for pressure, all_ready, passed in looks:
        now += passed
        was_within = bounds.least <= desired <= bounds.most
        decision = policy.decide(pressure, desired, desired if all_ready else desired - 1, now)
        if decision is None:
            assert was_within, "out of bounds, and left there"
            continue
        assert decision.number != desired
        assert bounds.least <= decision.number <= bounds.most
        if was_within and decision.number < desired:
            assert now - changed_at >= COOLDOWN_S
            assert desired - decision.number == 1
        desired, changed_at = decision.number, now


@given(BOUNDS, st.integers(1, 9))
def test_lasting_pressure_leads_to_the_most_and_lasting_calm_to_the_least(bounds: Bounds, start: int) -> None:
    for pressure, end in ((Pressure(queue=2.0, requests=9), bounds.most), (Pressure(), bounds.least)):
        policy, desired = ScalingPolicy(bounds, 1.0), start
        for now in range(100):
            decision = policy.decide(pressure, desired, desired, float(now))
            desired = desired if decision is None else decision.number
        assert desired == end
