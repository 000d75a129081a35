"""A task that is not awaited is supervised: otherwise its failure is never reported."""

from __future__ import annotations

import ast

from tests.unit.project.test_import_rules import ROOT, modules

AWAITED = {
    "router.admin.endpoint",
    "router.cli.frontends",
    "router.cli.model_service",
    "router.cli.server",
    "router.cli.shutdown",
    "router.cli.startup",
    "router.frontend.grpc.server",
    "router.frontend.http.asgi_streams",
    "router.frontend.http.event_stream",
    "router.frontend.http.server",
    "router.processing.run",
    "rpc.server",
    "worker.process.actor",
}
"""Modules that await the tasks that they create, and so raise what those raise."""
SUPERVISOR = "common.background"
STARTS = ("create_task", "ensure_future")


def test_tasks_that_nobody_awaits_are_supervised() -> None:
    found = set[str]()
    for name, path in modules().items():
        if name.startswith("benchmarks") or name == SUPERVISOR:
            continue
        for node in ast.walk(ast.parse(path.read_text(), str(path.relative_to(ROOT)))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in STARTS
            ):
                found.add(name)
    assert found == AWAITED
