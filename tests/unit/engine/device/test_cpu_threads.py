"""Host work on several threads leaves torch's settings as they were."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.device.cpu_threads import in_parallel


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    assert list(in_parallel(lambda n: n * n, range(50))) == [n * n for n in range(50)]


def test_each_thread_computes_alone_and_the_caller_as_before(threads: int) -> None:
    assert set(in_parallel(lambda _: torch.get_num_threads(), range(20))) == {1}
    assert torch.get_num_threads() == threads


def test_an_error_is_raised_and_the_number_of_threads_is_restored(threads: int) -> None:
    with pytest.raises(ZeroDivisionError):
        list(in_parallel(lambda n: 1 / n, [1, 2, 0, 3]))

    assert torch.get_num_threads() == threads


def test_few_items_are_taken_before_their_results_are(threads: int) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for n in range(100):
            taken.append(n)
            yield n

    next(in_parallel(lambda n: n, items()))

    assert len(taken) <= 2 * threads + 1
