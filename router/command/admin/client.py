"""Commands for a running router: `router workers`, `explain`, `cache`, `drain`, `restart` and others."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import ProxyHandler, Request, build_opener

from router.command.admin.cache_table import cache_lines
from router.command.admin.explain import explained
from router.config.flags.command_line import parse_models
from router.config.flags.values import ConfigError
from router.config.table import SETTINGS

_DEFAULT_PORT: Final = SETTINGS["http_port"].default + 1

Ask = Callable[[str, str], Any]
"""Method and path; returns the response's JSON."""


class _Refused(Exception):
    """The router refused the command, or is not reachable."""


def run(argv: Sequence[str]) -> int:
    """Exit status: 0 on success, 1 if the router refused the command or is not reachable."""
    arguments = make_parser().parse_args(argv)
    try:
        COMMANDS[arguments.command](arguments, _asker(arguments.admin_port))
    except _Refused as refused:
        print(f"router {arguments.command}: {refused}", file=sys.stderr)
        return 1
    return 0


def _workers(arguments: argparse.Namespace, ask: Ask) -> None:
    workers = ask("GET", f"/workers{_query(arguments)}")
    several = len({worker["model"] for worker in workers}) > 1
    model = ""
    for worker in workers:
        if several and worker["model"] != model:
            model = worker["model"]
            print(f"{model}:")
        state = worker["state"] + (f" ({worker['trouble']})" if worker["trouble"] else "")
        home = f"pid {worker['pid']} on {worker['host']}" if worker["pid"] else "no process"
        print(f"{worker['worker']:<12} {worker['role']:<8} {worker['requests']:>4} requests  {home}  {state}")
        if worker["weight_version"] not in (None, "default"):
            print(f"{'':<12} weights: {worker['weight_version']}")
        if worker["adapters"]:
            print(f"{'':<12} adapters: {', '.join(map(_adapter, worker['adapters']))}")
        if worker["predecessor"]:
            print(f"{'':<12} before: {worker['predecessor']}")


def _adapter(adapter: Mapping[str, Any]) -> str:
    """Name, place, and requests if there are any."""
    requests = [f"{adapter[state]} {state}" for state in ("running", "waiting") if adapter[state]]
    place = "in a slot" if adapter["on_device"] else "in host memory"
    return f"{adapter['name']} ({', '.join([place, *requests])})"


def _explain(arguments: argparse.Namespace, ask: Ask) -> None:
    for line in explained(ask("GET", f"/requests/{quote(arguments.request, safe='')}")):
        print(line)


def _cache(arguments: argparse.Namespace, ask: Ask) -> None:
    clears = arguments.action == "clear"
    if clears:
        query = _query(arguments, worker=arguments.worker, place=arguments.place, key=arguments.key)
        workers = ask("POST", f"/cache/clear{query}")
    elif arguments.place or arguments.key is not None:
        raise _Refused("--place and --key are for `router cache clear`")
    else:
        workers = ask("GET", f"/cache{_query(arguments, worker=arguments.worker)}")
    for line in cache_lines(workers, cleared=clears):
        print(line)


def _drain(arguments: argparse.Namespace, ask: Ask) -> None:
    for worker in arguments.worker:
        moved = ask("POST", _drain_path(worker, "drain", arguments))["moved"]
        print(f"{worker} is drained; {moved} of its requests moved to other workers")


def _restart(arguments: argparse.Namespace, ask: Ask) -> None:
    """Restart one worker at a time, so that the others can continue its requests.

    A worker that cannot be restarted is left as it is; the next ones are restarted all the same.
    """
    is_all = arguments.worker == ["all"]
    known = ask("GET", f"/workers{_query(arguments)}") if is_all else []
    pairs = [(w["model"], w["worker"]) for w in known] or [(arguments.model, w) for w in arguments.worker]
    failed = []
    for model, worker in pairs:
        try:
            moved = ask("POST", _drain_path(worker, "restart", arguments, model))["moved"]
        except _Refused as refused:
            print(f"router restart: {refused}", file=sys.stderr, flush=True)
            failed.append(worker)
        else:
            print(f"{worker} is ready again; {moved} of its requests moved to other workers", flush=True)
    if len(failed) < len(pairs) and failed:
        raise _Refused(f"not restarted: {', '.join(failed)}")
    if failed:
        raise _Refused("no worker was restarted")


def _role(arguments: argparse.Namespace, ask: Ask) -> None:
    query = _query(arguments, role=arguments.role, force=int(arguments.force))
    ask("POST", f"/workers/{quote(arguments.worker, safe='')}/role{query}")
    print(f"{arguments.worker} is a {arguments.role} worker now")


def _scale(arguments: argparse.Namespace, ask: Ask) -> None:
    query = _query(arguments, workers=arguments.number)
    workers = ask("POST", f"/scale/{arguments.role}{query}")["workers"]
    print(f"{arguments.role} workers: {', '.join(workers) or 'none'}")


def _stop(arguments: argparse.Namespace, ask: Ask) -> None:
    """Through the running router; with --config through Ray, for workers that no router uses."""
    if arguments.config is not None:
        if not arguments.workers:
            raise _Refused("--config is for --workers, when no router runs")
        ended = _end_workers(arguments.config, arguments.model)
        print(f"ended {', '.join(ended) or 'no worker: there was none'}")
        return
    if arguments.model is not None:
        raise _Refused("--model is for --config: a router ends with all of its models")
    query = urlencode({"workers": int(arguments.workers), "force": int(arguments.force)})
    ask("POST", f"/stop?{query}")
    print(f"the router{' and its workers are' if arguments.workers else ' is'} stopping; see its log")


def _end_workers(file: str, model: str | None) -> list[str]:
    try:
        configs = parse_models(["--config", file])
    except ConfigError as error:
        raise _Refused("; ".join(error.problems)) from None
    if model is not None:
        configs = tuple(config for config in configs if config.served_model_name == model)
    if not configs:
        raise _Refused(f"{file} has no model {model}")
    if configs[0].cluster.ray_address is None:
        raise _Refused(f"{file} has no ray-address: the workers of a router's own Ray end with it")
    # Ray: a second, which only this needs
    from router.cluster.ray_cluster import end_workers
    from router.cluster.ray_connection import ClusterError

    try:
        return end_workers(configs)
    except ClusterError as error:
        raise _Refused(str(error)) from None


COMMANDS: Final[dict[str, Callable[[argparse.Namespace, Ask], None]]] = {
    "workers": _workers,
    "explain": _explain,
    "cache": _cache,
    "drain": _drain,
    "restart": _restart,
    "role": _role,
    "scale": _scale,
    "stop": _stop,
}


def make_parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--admin-port",
        type=int,
        default=_DEFAULT_PORT,
        help="admin port of the router (default: %(default)s)",
    )
    of_model = argparse.ArgumentParser(add_help=False)
    of_model.add_argument("--model", metavar="NAME", help="of this model; if the router has several")
    draining = argparse.ArgumentParser(add_help=False)
    draining.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="time for running requests to finish, after which they continue on other workers (default: the"
        " router's --drain-timeout)",
    )
    draining.add_argument(
        "--force", action="store_true", help="also drain the last ready worker of a role; requests may fail"
    )
    parser = argparse.ArgumentParser(prog="router", description="Manage the workers of a running router.")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, text: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        description = f"{text[0].upper()}{text[1:]}."
        return commands.add_parser(name, parents=[common, *parents], help=text, description=description)

    command("workers", "list the workers of a running router", of_model)
    explain = command("explain", "show where a request was computed, and what it waited for")
    explain.add_argument(
        "request", help="id of the response (`id`, or header x-request-id: the client's own, if it sent one)"
    )
    cache = command("cache", "list what is cached, by worker and place, or clear it", of_model)
    cache.add_argument("action", nargs="?", choices=["list", "clear"], default="list")
    cache.add_argument("--worker", help="worker id, such as decode-0 (default: all)")
    cache.add_argument(
        "--place",
        action="append",
        choices=["pool", "host", "disk", "object"],
        help="clear only this; may be repeated (default: all places)",
    )
    cache.add_argument("--key", help="clear only what sessions of this key retain, and retain it no longer")
    drain = command(
        "drain", "drain workers: no new requests, running answers move to other workers", of_model, draining
    )
    drain.add_argument("worker", nargs="+", help="worker id, such as decode-0")
    restart = command(
        "restart", "drain and restart workers, one by one; also starts drained workers", of_model, draining
    )
    restart.add_argument("worker", nargs="+", help="worker id, such as decode-0, or `all`")
    role = command("role", "change the role of a worker; running requests are not affected", of_model)
    role.add_argument("worker", help="worker id, such as prefill-1")
    role.add_argument("role", choices=["prefill", "decode"])
    role.add_argument("--force", action="store_true", help="also if it is the last worker of its role")
    scale = command("scale", "change the number of workers; those that leave are drained first", of_model)
    scale.add_argument(
        "role",
        choices=["prefill", "decode", "encode"],
        help="in mixed mode all but encode workers are decode workers",
    )
    scale.add_argument("number", type=int, help="workers of this role that the cluster is to have")
    stop = command("stop", "stop a router: running requests get --drain-timeout to finish", of_model)
    stop.add_argument(
        "--workers", action="store_true", help="end the workers too (default: they wait for the next router)"
    )
    stop.add_argument("--force", action="store_true", help="also if other routers use the workers")
    stop.add_argument(
        "--config", metavar="FILE", help="with --workers, when no router runs: settings of the last one"
    )
    return parser


def _drain_path(worker: str, verb: str, arguments: argparse.Namespace, model: str | None = None) -> str:
    query = _query(
        arguments,
        model=model or arguments.model,
        timeout=arguments.timeout,
        force=int(arguments.force),
    )
    return f"/workers/{quote(worker, safe='')}/{verb}{query}"


def _query(arguments: argparse.Namespace, **values: object) -> str:
    """With the model, if one is given, and the values that are not None; one parameter for each of a list."""
    given = {"model": arguments.model, **values}
    query = urlencode({name: value for name, value in given.items() if value is not None}, doseq=True)
    return f"?{query}" if query else ""


def _asker(port: int) -> Ask:
    direct = build_opener(ProxyHandler({}))

    def ask(method: str, path: str) -> Any:
        try:
            with direct.open(Request(f"http://127.0.0.1:{port}{path}", method=method)) as answer:
                return json.load(answer)
        except HTTPError as error:
            raise _Refused(_reason(error, port)) from None
        except URLError as error:
            reason = getattr(error.reason, "strerror", None) or error.reason
            raise _Refused(f"no router answers on 127.0.0.1:{port}: {reason}; see --admin-port") from None
        except (OSError, HTTPException, ValueError):
            raise _Refused(_not_ours(port)) from None

    return ask


def _reason(error: HTTPError, port: int) -> str:
    try:
        reason = json.load(error)["error"]
    except (OSError, HTTPException, ValueError, TypeError, KeyError):
        return _not_ours(port)
    return reason if isinstance(reason, str) else _not_ours(port)


def _not_ours(port: int) -> str:
    return f"what answers on 127.0.0.1:{port} is not the admin port of a router; see --admin-port"
