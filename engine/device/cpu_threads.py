"""Independent host work on several threads, without OpenMP's barriers.

Where other processes keep cores busy, OpenMP's threads spin at the end of each operation until the operating
system has scheduled the last of them: loading a model on two busy cores took 16 s instead of 0.5 s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(function: Callable[[T], R], items: Iterable[T], *, threads: int | None = None) -> Iterator[R]:
    """Like `map`, on `threads` threads, by default as many as torch uses, each of which computes alone.

    Takes at most two items per thread from `items` before it yields a result. Torch operations of other
    threads should not run meanwhile: torch gives threads that are new to it the number that was set last.
    Raises what `function` raises.
    """
    before = torch.get_num_threads()
    threads = threads or before
    if threads == 1:
        yield from map(function, items)
        return
    pending: deque[Future[R]] = deque()
    try:
        with ThreadPoolExecutor(threads, "host", initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) > 2 * threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
    finally:
        torch.set_num_threads(before)
