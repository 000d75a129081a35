"""A task that is not awaited is supervised: otherwise its failure is never reported."""

from __future__ import annotations

import ast

from tests.unit.project.test_import_rules import ROOT, modules

AWAITED = {
    "router.command.admin.endpoint",
    "router.command.frontends",
    "router.command.model_service",
    "router.command.server",
    "router.command.shutdown",
    "router.command.startup",
    "router.api.grpc.server",
    "router.api.http.asgi_streams",
    "router.api.endpoints.event_stream",
    "router.api.endpoints.kinds",
    "router.api.http.server",
    "router.api.generation.run",
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
