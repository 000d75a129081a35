"""The 2 x 2 figure of a run of `benchmarks.chunked`: TTFT, TPOT, ITL and E2E over the load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from benchmarks.lib.report import Percentiles

__all__ = ["Mark", "plot_chunks"]

_METRICS: Final = ("ttft", "tpot", "itl", "e2e")


class Mark(NamedTuple):
    """One setting at one load."""

    setting: str
    load: float
    """Of the highest rate that was sent; or any other scale of load."""
    spreads: dict[str, Percentiles]
    """By "ttft", "tpot", "itl" and "e2e", in seconds."""


def plot_chunks(marks: Sequence[Mark], title: str, path: Path) -> None:
    """p90 as a line, p50 to p90 as a band, p99 as hollow circles; one colour a setting, time in ms."""
    figure, axes = plt.subplots(2, 2, figsize=(12, 8), layout="constrained", sharex=True)
    settings = list(dict.fromkeys(mark.setting for mark in marks))
    colors = plt.get_cmap("viridis")
    for ax, metric in zip(axes.flat, _METRICS, strict=True):
        for index, setting in enumerate(settings):
            own = sorted((mark for mark in marks if mark.setting == setting), key=lambda mark: mark.load)
            loads = [mark.load for mark in own]
            p50, p90, p99 = (
                [getattr(mark.spreads[metric], p) * 1e3 for mark in own] for p in ("p50", "p90", "p99")
            )
            color = colors(index / max(len(settings) - 1, 1))
            ax.fill_between(loads, p50, p90, color=color, alpha=0.12, lw=0)
            ax.plot(loads, p90, color=color, label=setting)
            ax.scatter(loads, p99, s=22, facecolors="none", edgecolors=color)
        ax.set_title(f"{metric.upper()}, ms", fontsize=10)
        ax.set_yscale("log")
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[1]:
        ax.set_xlabel("load")
    axes[0][0].legend(frameon=False, fontsize=8)
    figure.suptitle(f"{title}\nline p90, band p50 to p90, circles p99", fontsize=10)
    figure.savefig(path, dpi=150)
    plt.close(figure)
