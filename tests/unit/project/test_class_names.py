"""A public class name exists once, so that a search for it finds one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = (
    "baton",
    "common",
    "decode_worker",
    "encode_worker",
    "engine",
    "kv_transfer",
    "prefill_worker",
    "router",
    "rpc",
    "simulator",
    "worker",
)
TWICE = {
    "Completion": "OpenAI's name of an answer, in the generated document",
    "SamplingParams": "vLLM's name, for offline inference",
}


def test_no_class_name_exists_twice_without_reason() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if "_pb2" in path.name:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    twice = {name: places for name, places in found.items() if len(places) > 1}
    assert twice.keys() == TWICE.keys(), twice
