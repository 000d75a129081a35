"""Finished runs of a benchmark in a file, from which an interrupted benchmark resumes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.lib.engines.chunk_engines import Alone
from benchmarks.lib.load.client import Record
from engine.core.events import StepMeasured


class OtherOptions(Exception):
    """The file holds runs that were made with other options."""


class RunLog:
    """Runs by name. Without a file they are kept in memory alone."""

    def __init__(self, path: Path | None, options: dict[str, Any]) -> None:
        """`options`: what all runs of the file have in common. Raises OtherOptions."""
        self._path: Final = path
        self._content: dict[str, Any] = {"options": options, "runs": {}, "steps": [], "alone": {}}
        if path is not None and path.exists():
            self._content = json.loads(path.read_text())
            if self._content["options"] != options:
                raise OtherOptions(f"{path} holds runs with other options: {self._content['options']}")

    def __contains__(self, name: str) -> bool:
        return name in self._content["runs"]

    def add(self, name: str, records: Sequence[Record], steps: Sequence[StepMeasured] = ()) -> None:
        self._content["runs"][name] = [asdict(record) for record in records]
        self._content["steps"] += [asdict(step) for step in steps]
        self._save()

    def records(self, name: str) -> list[Record]:
        """Raises KeyError for a run that was not made."""
        return [Record(**record) for record in self._content["runs"][name]]

    @property
    def steps(self) -> list[StepMeasured]:
        return [StepMeasured(**step) for step in self._content["steps"]]

    @property
    def alone(self) -> dict[str, list[Alone]]:
        """By chunk size; one of each repetition."""
        return {name: [Alone(**one) for one in each] for name, each in self._content["alone"].items()}

    def add_alone(self, name: str, alone: Alone) -> None:
        self._content["alone"].setdefault(name, []).append(asdict(alone))
        self._save()

    def _save(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps(self._content))
