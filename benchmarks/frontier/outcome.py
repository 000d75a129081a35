"""Results of the frontier search as a table, a file and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from rich.table import Table

PARITY: Final = 0.98
"""Rate relative to the better fixed mode below which adaptive placement is marked."""
_COLORS: Final = {"mixed": "#2563eb", "disagg": "#0d9488", "adaptive": "#d97706"}
_FIXED: Final = ("mixed", "disagg")


@dataclass(frozen=True, slots=True)
class Found:
    """The frontier of one mode for one cluster, regime and workload."""

    workers: int
    regime: str
    workload: str
    mode: str
    variant: str
    """The best variant of the mode."""
    rate: float
    """Requests a second; 0 if no rate keeps the share."""
    share: float
    """Of good answers at that rate."""
    probes: tuple[tuple[float, float], ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Found:
        probes = tuple((rate, share) for rate, share in content["probes"])
        return cls(**{**content, "probes": probes})


@dataclass(frozen=True, slots=True)
class Cell:
    """All modes for one cluster, regime and workload."""

    workers: int
    regime: str
    workload: str
    modes: dict[str, Found]

    @property
    def parity(self) -> float | None:
        """Adaptive's rate relative to the better fixed mode's; None if either is missing or 0."""
        fixed = max((self.modes[mode].rate for mode in _FIXED if mode in self.modes), default=0.0)
        if "adaptive" not in self.modes or not fixed:
            return None
        return self.modes["adaptive"].rate / fixed


def cells_of(found: Sequence[Found]) -> list[Cell]:
    """Cells in order of appearance; a later result of the same mode and cell replaces an earlier one."""
    cells: dict[tuple[int, str, str], dict[str, Found]] = {}
    for each in found:
        cells.setdefault((each.workers, each.regime, each.workload), {})[each.mode] = each
    return [Cell(*key, modes) for key, modes in cells.items()]


def frontier_table(found: Sequence[Found], title: str) -> Table:
    """One row per cell; the last column is adaptive relative to the better fixed mode.

    It is marked below `PARITY`.
    """
    table = Table(title=title, title_justify="left", show_edge=False)
    for name in ("workers", "targets", "workload"):
        table.add_column(name)
    modes = list(dict.fromkeys(each.mode for each in found))
    for name in (*modes, "adaptive / fixed"):
        table.add_column(name, justify="right")
    for cell in cells_of(found):
        rates = (_rate(cell.modes[mode]) if mode in cell.modes else "" for mode in modes)
        table.add_row(str(cell.workers), cell.regime, cell.workload, *rates, _parity(cell))
    return table


def _rate(found: Found) -> str:
    return f"{found.rate:.2f} ({found.variant})" if found.rate else "none"


def _parity(cell: Cell) -> str:
    if cell.parity is None:
        return ""
    return f"{cell.parity:.2f}" + (" !" if cell.parity < PARITY else "")


def plot_frontiers(found: Sequence[Found], title: str, path: Path) -> None:
    """A panel per number of workers and regime, a group of bars per workload, a bar per mode."""
    cells = cells_of(found)
    rows = list(dict.fromkeys(cell.workers for cell in cells))
    columns = list(dict.fromkeys(cell.regime for cell in cells))
    size = (4.6 * len(columns), 3.2 * len(rows))
    figure, axes = plt.subplots(len(rows), len(columns), figsize=size, layout="constrained", squeeze=False)
    for row, workers in zip(axes, rows, strict=True):
        for ax, regime in zip(row, columns, strict=True):
            own = [cell for cell in cells if (cell.workers, cell.regime) == (workers, regime)]
            for index, (mode, color) in enumerate(_COLORS.items()):
                rates = [cell.modes[mode].rate if mode in cell.modes else 0.0 for cell in own]
                places = [place + 0.27 * (index - 1) for place in range(len(own))]
                bars = ax.bar(places, rates, width=0.25, color=color, label=mode)
                ax.bar_label(bars, fmt="{:.1f}", fontsize=7)
            ax.set_xticks(range(len(own)), [cell.workload.replace(", ", ",\n") for cell in own], fontsize=8)
            ax.set_title(f"{workers} workers, {regime}", fontsize=10)
            ax.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel("requests/s")
    axes[0][0].legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=150)
    plt.close(figure)
