"""What the router process loads: it computes nothing, so it must not pay for what computes."""

from __future__ import annotations

import subprocess
import sys


def test_the_router_never_loads_torch() -> None:
    code = (
        "import sys, router.command.startup, router.command.server, worker.process.roles;"
        "print(sorted(sys.modules.keys() & {'torch', 'transformers', 'nixl_cu13'}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
