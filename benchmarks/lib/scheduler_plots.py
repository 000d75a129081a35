"""One panel a figure, one bar a scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

_COLORS: Final = ("#94a3b8", "#d97706", "#0d9488", "#2563eb", "#7c3aed")
_DPI: Final = 150


def plot_schedulers(rows: Mapping[str, Mapping[str, float]], title: str, path: Path) -> None:
    """`rows`: figures by name, by the flags of the scheduler. Logarithmic where they differ much."""
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
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    axes[0].invert_yaxis()
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)
