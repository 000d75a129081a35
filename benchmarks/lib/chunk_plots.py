"""The 2 x 2 figure of `benchmarks.chunked`: TTFT, TPOT, ITL and E2E over the load or the chunk size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from benchmarks.lib.engines.chunk_engines import Setting
from benchmarks.lib.report import Percentiles

_METRICS: Final = ("ttft", "tpot", "itl", "e2e")


class Mark(NamedTuple):
    """One setting at one load."""

    setting: Setting
    load: float
    """Of the highest rate that was sent; or any other scale of load."""
    spreads: dict[str, Percentiles]
    """By "ttft", "tpot", "itl" and "e2e", in seconds."""


def plot_chunks(marks: Sequence[Mark], title: str, path: Path) -> None:
    """p90 as a line, p50 to p90 as a band, p99 as hollow circles, time in ms.

    Over the load, one colour for each setting; with a single load over the chunk size, one for each batching.
    """
    if len({mark.load for mark in marks}) > 1:
        _plot([(str(mark.setting), mark.load, mark) for mark in marks], title, path, "load")
        return
    sizes = list(dict.fromkeys(mark.setting.size for mark in marks))
    points = [(m.setting.batching.value, float(sizes.index(m.setting.size)), m) for m in marks]
    _plot(points, title, path, "tokens in a chunk", sizes)


def _plot(
    points: Sequence[tuple[str, float, Mark]],
    title: str,
    path: Path,
    x_label: str,
    x_names: Sequence[str] = (),
) -> None:
    """`points`: line, x and what to draw there. `x_names`: of x = 0, 1, …; none: x is a number."""
    figure, axes = plt.subplots(2, 2, figsize=(12, 8), layout="constrained", sharex=True)
    lines = list(dict.fromkeys(line for line, _, _ in points))
    colors = plt.get_cmap("viridis")
    for ax, metric in zip(axes.flat, _METRICS, strict=True):
        for index, line in enumerate(lines):
            own = sorted(((x, mark) for name, x, mark in points if name == line), key=lambda point: point[0])
            places = [x for x, _ in own]
            p50, p90, p99 = (
                [getattr(mark.spreads[metric], p) * 1e3 for _, mark in own] for p in ("p50", "p90", "p99")
            )
            color = colors(index / max(len(lines) - 1, 1))
            ax.fill_between(places, p50, p90, color=color, alpha=0.12, lw=0)
            ax.plot(places, p90, color=color, label=line)
            ax.scatter(places, p99, s=22, facecolors="none", edgecolors=color)
        ax.set_title(f"{metric.upper()}, ms", fontsize=10)
        ax.set_yscale("log")
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[1]:
        ax.set_xlabel(x_label)
        if x_names:
            ax.set_xticks(range(len(x_names)), x_names)
    axes[0][0].legend(frameon=False, fontsize=8)
    figure.suptitle(f"{title}\nline p90, band p50 to p90, circles p99", fontsize=10)
    figure.savefig(path, dpi=150)
    plt.close(figure)
