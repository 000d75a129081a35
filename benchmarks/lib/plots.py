"""The plot of `benchmarks.modes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.lib.outcomes import Point, Run

_COLORS: Final = ("#2563eb", "#0d9488", "#d97706", "#94a3b8")
_DPI: Final = 150


def plot_modes(points: Sequence[Point], title: str, path: Path) -> None:
    """Goodput, share of good answers, TTFT and ITL over the rate of requests that came.

    One line a mode: means over the seeds, between the lowest and the highest.
    """
    panels: dict[str, Callable[[Run], float]] = {
        "goodput, requests/s": lambda run: run.summary.goodput,
        "good, %": lambda run: 100 * run.share_good,
        "TTFT p99, s": lambda run: run.summary.ttft.p99,
        "ITL p99, s": lambda run: run.summary.itl.p99,
    }
    figure, axes = plt.subplots(1, len(panels), figsize=(15, 3.4), layout="constrained")
    for ax, (name, figure_of) in zip(axes, panels.items(), strict=True):
        for mode, color in zip(dict.fromkeys(point.mode for point in points), _COLORS, strict=False):
            own = [point for point in points if point.mode == mode]
            rates = [point.spread(lambda run: run.offered).mean for point in own]
            spreads = [point.spread(figure_of) for point in own]
            ax.plot(rates, [spread.mean for spread in spreads], marker="o", color=color, label=mode)
            lows, highs = [s.low for s in spreads], [s.high for s in spreads]
            ax.fill_between(rates, lows, highs, color=color, alpha=0.15, lw=0)
        ax.set_title(name, fontsize=10)
        ax.set_xlabel("arrivals/s")
        ax.set_ylim(bottom=0)
        _plain(ax)
    axes[0].legend(frameon=False)
    _save(figure, title, path)


def _plain(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, title: str, path: Path) -> None:
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)
