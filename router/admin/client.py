"""`router workers`, `explain`, `drain`, `restart` and `role`: operator commands for a running router."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import ProxyHandler, Request, build_opener

from router.admin.explain import explained
from router.config.table import SETTINGS

__all__ = ["COMMANDS", "run"]

_DEFAULT_PORT: Final = SETTINGS["http_port"].default + 1

Ask = Callable[[str, str], Any]
"""Method and path; returns the answer's JSON."""


class _Refused(Exception):
    """The router refused, or does not answer."""


def run(argv: Sequence[str]) -> int:
    """Exit status: 0 on success, 1 if the router refused or does not answer."""
    arguments = _parser().parse_args(argv)
    try:
        COMMANDS[arguments.command](arguments, _asker(arguments.admin_port))
    except _Refused as refused:
        print(f"router {arguments.command}: {refused}", file=sys.stderr)
        return 1
    return 0


def _workers(arguments: argparse.Namespace, ask: Ask) -> None:
    for worker in ask("GET", "/workers"):
        state = worker["state"] + (f" ({worker['trouble']})" if worker["trouble"] else "")
        home = f"pid {worker['pid']} on {worker['host']}" if worker["pid"] else "no process"
        print(f"{worker['worker']:<12} {worker['requests']:>4} requests  {home}  {state}")


def _explain(arguments: argparse.Namespace, ask: Ask) -> None:
    for line in explained(ask("GET", f"/requests/{quote(arguments.request, safe='')}")):
        print(line)


def _drain(arguments: argparse.Namespace, ask: Ask) -> None:
    for worker in arguments.worker:
        moved = ask("POST", _path(worker, "drain", arguments))["moved"]
        print(f"{worker} has left; {moved} of its requests moved to others")


def _restart(arguments: argparse.Namespace, ask: Ask) -> None:
    """One worker after another, so that the others can take over its requests."""
    everybody = arguments.worker == ["all"]
    workers = [w["worker"] for w in ask("GET", "/workers")] if everybody else arguments.worker
    for worker in workers:
        moved = ask("POST", _path(worker, "restart", arguments))["moved"]
        print(f"{worker} is back; {moved} of its requests moved to others", flush=True)


def _role(arguments: argparse.Namespace, ask: Ask) -> None:
    query = urlencode({"role": arguments.role, "force": int(arguments.force)})
    ask("POST", f"/workers/{quote(arguments.worker, safe='')}/role?{query}")
    print(f"{arguments.worker} is a {arguments.role} worker now")


COMMANDS: Final[dict[str, Callable[[argparse.Namespace, Ask], None]]] = {
    "workers": _workers,
    "explain": _explain,
    "drain": _drain,
    "restart": _restart,
    "role": _role,
}


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--admin-port", type=int, default=_DEFAULT_PORT, help="the router's (default: %(default)s)"
    )
    leaving = argparse.ArgumentParser(add_help=False)
    leaving.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="for its requests to finish; then they go on elsewhere (default: the router's --drain-timeout)",
    )
    leaving.add_argument(
        "--force", action="store_true", help="even if no other worker of its role is ready: requests may fail"
    )
    parser = argparse.ArgumentParser(prog="router", description="Look after a running router's workers.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("workers", parents=[common], help="list them")
    explain = commands.add_parser("explain", parents=[common], help="say why a request took its time")
    explain.add_argument("request", help="the id of its answer, which is its x-request-id")
    drain = commands.add_parser("drain", parents=[common, leaving], help="let workers leave in order")
    drain.add_argument("worker", nargs="+", help="such as decode-0")
    restart = commands.add_parser(
        "restart", parents=[common, leaving], help="restart workers, or start those that left, one by one"
    )
    restart.add_argument("worker", nargs="+", help="such as decode-0; `all` for every one")
    role = commands.add_parser("role", parents=[common], help="use a worker for the other role, at once")
    role.add_argument("worker", help="such as prefill-1")
    role.add_argument("role", choices=["prefill", "decode"])
    role.add_argument("--force", action="store_true", help="even if it is the last of its role")
    return parser


def _path(worker: str, verb: str, arguments: argparse.Namespace) -> str:
    timeout = {} if arguments.timeout is None else {"timeout": arguments.timeout}
    return f"/workers/{quote(worker, safe='')}/{verb}?{urlencode({**timeout, 'force': int(arguments.force)})}"


def _asker(port: int) -> Ask:
    direct = build_opener(ProxyHandler({}))

    def ask(method: str, path: str) -> Any:
        try:
            with direct.open(Request(f"http://127.0.0.1:{port}{path}", method=method)) as answer:
                return json.load(answer)
        except HTTPError as error:
            raise _Refused(json.load(error)["error"]) from None
        except (URLError, OSError) as error:
            raise _Refused(f"no router answers on 127.0.0.1:{port} ({error}); see --admin-port") from None

    return ask
