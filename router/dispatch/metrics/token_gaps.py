"""Inter-token latencies, one for every token of the cluster, counted at the price of a dictionary's entry."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ["Gaps"]

_MOST_PENDING: Final = 32
"""Different gaps before all are observed."""


class Gaps(Collector):
    """A Prometheus histogram.

    All tokens of a worker's step arrive together, so most of them have the same gap to the token before.
    Equal gaps are counted first, and observed together.
    """

    def __init__(
        self,
        name: str,
        text: str,
        labels: Mapping[str, str],
        bounds: Sequence[float],
        observe: Callable[[float, int], None],
    ) -> None:
        """`bounds`: upper bounds of the buckets in seconds. `observe` gets the gaps and their counts, too."""
        self._pending: Counter[float] = Counter()
        self._name, self._text, self._labels = name, text, dict(labels)
        self._bounds = (*bounds, math.inf)
        self._observe = observe
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def add(self, seconds: float, count: int) -> None:
        self._pending[seconds] += count
        if len(self._pending) > _MOST_PENDING:
            self._settle()

    def _settle(self) -> None:
        for seconds, count in self._pending.items():
            self._counts[bisect_left(self._bounds, seconds)] += count
            self._sum += seconds * count
            self._observe(seconds, count)
        self._pending.clear()

    def collect(self) -> Iterable[Metric]:
        self._settle()
        family = HistogramMetricFamily(self._name, self._text, labels=list(self._labels))
        names = [*(str(bound) for bound in self._bounds[:-1]), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        family.add_metric(list(self._labels.values()), buckets, self._sum)
        return [family]
