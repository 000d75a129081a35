"""Which workers there are after a change of their number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.cluster.fleet import WantedWorkers, in_order, role_of
from worker.config import WorkerRole

DECODE = WorkerRole.DECODE
NUMBERS = st.integers(0, 8)


def names(*numbers: int) -> tuple[str, ...]:
    return tuple(f"decode-{number}" for number in numbers)


def test_new_workers_have_the_smallest_free_numbers() -> None:
    wanted = WantedWorkers(names(0, 2), 2)
    assert wanted.resized(DECODE, 4).worker_ids == names(0, 1, 2, 3)
    assert wanted.resized(DECODE, 4, taken=names(1)).worker_ids == names(0, 2, 3, 4)


def test_the_workers_of_least_worth_leave_and_of_equal_ones_the_last() -> None:
    wanted = WantedWorkers.first(DECODE, 4)
    assert wanted.resized(DECODE, 2).worker_ids == names(0, 1)
    busy = {"decode-3": 5, "decode-0": -1}
    assert wanted.resized(DECODE, 2, lambda name: busy.get(name, 0)).worker_ids == names(1, 3)


def test_workers_are_listed_by_role_and_number() -> None:
    assert in_order({"decode-10", "decode-9", "prefill-1"}) == ["prefill-1", "decode-9", "decode-10"]


@given(st.sets(NUMBERS), NUMBERS, st.sets(NUMBERS), st.randoms())
def test_a_change_keeps_as_many_workers_as_it_can(
    before: set[int], number: int, taken: set[int], draw: object
) -> None:
    worth = {name: draw.random() for name in names(*before)}  # type: ignore[attr-defined]
    wanted = WantedWorkers(names(*sorted(before)), 1)
    ending = set(names(*taken)) - set(wanted.worker_ids)
    changed = wanted.resized(DECODE, number, worth.__getitem__, ending)
    kept = set(changed.worker_ids) & set(wanted.worker_ids)
    left = set(wanted.worker_ids) - kept
    assert len(set(changed.worker_ids)) == len(changed.worker_ids) == number
    assert len(kept) == min(number, len(before))
    assert not set(changed.worker_ids) & ending
    assert all(worth[stays] >= worth[leaves] for stays in kept for leaves in left)
    assert {role_of(name) for name in changed.worker_ids} <= {DECODE}
    assert WantedWorkers.from_json(changed.to_json()) == changed
