"""First words of a command line that are commands of other programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_ANSWERS: Final = {
    "use `router serve MODEL`": "launch_server launch run start up",
    "use `router workers` for the workers, `router top` for the load": "status ps list ls info",
    "GET /v1/models lists the served models, and docs/models.md those that load": "models",
    "keys and certificates are read again when their files change; `router restart all` restarts workers": (
        "reload reconfigure"
    ),
    "use `python -m benchmarks.load` in a checkout of the repository": (
        "bench benchmark bench_serving bench-serving"
    ),
    "use `router doctor`": "collect-env collect_env check check_env env",
    "use `router chat`, or POST /v1/completions": "complete completion generate",
    "use `router batch`": "run-batch run_batch",
    "`router serve MODEL` fetches a model that is not on this machine": "pull download fetch",
    "use `router stop`": "kill shutdown down quit",
    "the log is written to stderr; `router explain REQUEST` tells of a request": "logs log",
}
ANSWERS: Final = {word: answer for answer, words in _ANSWERS.items() for word in words.split()}
"""What to use, by the word."""
_FLAGS: Final = {"help": "--help", "version": "--version"}


def with_flag(arguments: Sequence[str]) -> Sequence[str]:
    """`arguments`, in which a first word that stands for a flag is that flag: `router help chat`."""
    if not arguments or arguments[0] not in _FLAGS:
        return arguments
    return [*arguments[1:2], _FLAGS[arguments[0]]]
