"""Plots of results, for README and documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.lib.outcomes import Point, Run
from benchmarks.lib.servers.systems import Outcome

_COLORS: Final = ("#2563eb", "#0d9488", "#d97706", "#94a3b8")
_DPI: Final = 150


def plot_comparison(outcomes: Sequence[Outcome], title: str, path: Path) -> None:
    """Four panels of bars, one bar a system."""
    names = [outcome.name for outcome in outcomes]
    panels = {
        "tokens/s, all at once": [outcome.together.total_rate for outcome in outcomes],
        "tokens/s, one alone": [outcome.alone.total_rate for outcome in outcomes],
        "TTFT p50, all at once (s)": [outcome.together.ttft.p50 for outcome in outcomes],
        "peak memory (GiB)": [outcome.peak_bytes / 2**30 for outcome in outcomes],
    }
    figure, axes = plt.subplots(1, len(panels), figsize=(14, 3.6), layout="constrained")
    for ax, (name, values) in zip(axes, panels.items(), strict=True):
        bars = ax.bar(names, values, color=_COLORS, width=0.65)
        ax.bar_label(bars, fmt="{:,.3g}", padding=2)
        ax.set_title(name, fontsize=10)
        ax.margins(y=0.15)
        ax.tick_params(axis="x", labelrotation=20)
        _plain(ax)
    _save(figure, title, path)


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


def plot_schedulers(rows: Mapping[str, Mapping[str, float]], title: str, path: Path) -> None:
    """One panel a figure, one bar a scheduler. Logarithmic where they differ much.

    `rows`: figures by name, by the flags of the scheduler.
    """
    names = [line or "defaults" for line in rows]
    figures = list(next(iter(rows.values())))
    height = 0.32 * len(names) + 1.1
    figure, axes = plt.subplots(
        1, len(figures), figsize=(4 + 1.9 * len(figures), height), layout="constrained", sharey=True
    )
    for ax, name in zip(axes, figures, strict=True):
        values = [row[name] for row in rows.values()]
        colors = [_COLORS[k % len(_COLORS)] for k in range(len(values))]
        bars = ax.barh(names, values, color=colors, height=0.65)
        ax.bar_label(
            bars, labels=[f"{value:,.3g}" if value < 100 else f"{value:,.0f}" for value in values], padding=2
        )
        ax.set_title(name, fontsize=9)
        if min(values) > 0 and max(values) > 20 * min(values):
            ax.set_xscale("log")
        ax.margins(x=0.3)
        ax.tick_params(labelsize=8)
        _plain(ax)
    axes[0].invert_yaxis()
    _save(figure, title, path)


def _plain(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, title: str, path: Path) -> None:
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)
