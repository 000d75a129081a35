"""The `router` command: a Ctrl-C while its modules are imported ends it without a traceback."""

from __future__ import annotations

import signal


def main() -> int:
    """See `router.command.main`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from router.command.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()
