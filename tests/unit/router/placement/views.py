"""Views of workers of which only the load matters."""

from __future__ import annotations

from typing import Any

from router.placement import StepTime, WorkerView


def loaded(name: str = "", **load: Any) -> WorkerView:
    """`load`: fields of WorkerView."""
    pages = {"available_pages": 1000, "total_pages": 1000, "page_size": 1}
    return WorkerView(id=name, step_time=StepTime(), chunk_tokens=2048, **pages | load)
