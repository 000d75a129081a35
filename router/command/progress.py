"""Progress of a start: bars on a terminal, one line per stage otherwise."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from types import TracebackType

_log = logging.getLogger(__name__)
_lines = logging.getLogger("router.start")
"""Lines of the start, which --log-level does not hide."""
_lines.setLevel(logging.INFO)

_SHORTEST_S: Final = 0.1
_SAY_S: Final = 10.0
"""Without a terminal: between two lines of a stage of a worker's start."""


@dataclass(slots=True)
class _Loading:
    stage: str
    began: float
    said: float


class StartupDisplay:
    """A context manager; writes to standard error."""

    def __init__(self, console: Console | None = None, *, as_log: bool = False) -> None:
        """`as_log`: write log lines, so that all of the output has their format."""
        self._console = console or Console(stderr=True, force_terminal=False if as_log else None)
        self._as_log = as_log
        self._bars = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._label = ""
        self._began = time.monotonic()
        self._took: list[tuple[str, float]] = []
        self._loading: dict[str, _Loading] = {}
        """Loading workers, by id."""

    def __enter__(self) -> StartupDisplay:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()

    def of(self, label: str) -> StartupDisplay:
        """The same display, with `label` before every line: of one of several models."""
        labelled = copy(self)
        labelled._label = f"{label}: "
        return labelled

    def labelled(self, message: str) -> str:
        return self._label + message

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """One stage of the start; shows the time that it took."""
        began = time.monotonic()
        self.show(name)
        yield
        took = time.monotonic() - began
        self._took.append((self._label + name, took))
        self.done(name, f"{took:.1f} s")

    def after(self) -> str:
        """The time since the display was made, and that of each stage of a tenth of a second or more."""
        stages = ", ".join(f"{name} {took:.1f} s" for name, took in self._took if took >= _SHORTEST_S)
        return f"after {time.monotonic() - self._began:.1f} s ({stages})"

    def waiting(self, what: str) -> None:
        """Show and log what the workers wait for."""
        self.show("workers", what)
        _log.info("%s%s", self._label, what)

    def show(self, name: str, note: str = "") -> None:
        """Show that `name` is in progress."""
        self._update(name, note=note)

    def progress(self, name: str, done: int, total: int) -> None:
        """Show `done` of `total` bytes; a `common.progress.Progress`. May be called from any thread."""
        self._update(name, completed=done, total=total, note=f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB")

    def loading(self, worker: str, stage: str, done: int, total: int) -> None:
        """Show a worker's progress in loading; `total` is 0 if unknown. See `common.progress.Progress`."""
        if not self._console.is_terminal:
            self._say_slow(worker, stage)
        if total:
            self._update(worker, completed=done, total=total, note=stage)
        else:
            self.show(worker, stage)

    def _say_slow(self, worker: str, stage: str) -> None:
        """A line now and then for a stage that takes long: a log shows no bars."""
        now, name = time.monotonic(), stage.partition(":")[0]
        loading = self._loading.get(worker)
        if loading is None or loading.stage != name:
            self._loading[worker] = _Loading(name, now, now)
        elif now - loading.said >= _SAY_S:
            loading.said = now
            self.say(f"{worker}: {stage[:1].lower()}{stage[1:]}, since {now - loading.began:.0f} s")

    def done(self, name: str, note: str = "") -> None:
        task = self._update(name, note=note)
        total = self._bars.tasks[task].total or 1
        self._bars.update(task, completed=total, total=total)
        if not self._console.is_terminal:
            self.say(f"{name}: {note}")

    def say(self, message: str) -> None:
        """Print a permanent line."""
        if self._as_log:
            _lines.info("%s", self._label + message)
            return
        self._console.print(self._label + message, highlight=False, soft_wrap=True)

    def _update(self, name: str, **changes: object) -> TaskID:
        name = self._label + name
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = self._bars.add_task(name, total=None, note="")
        self._bars.update(task, **changes)  # type: ignore[arg-type]
        return task
