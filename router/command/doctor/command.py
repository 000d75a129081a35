"""`router doctor`: parses its flags, runs the checks in order, prints a row for each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from router.command.doctor import gpus, links, machine, model, nodes, software, transports
from router.command.doctor.report import Finding, Verdict, exit_status, lines_of
from router.command.preflight import LOOPBACK
from router.config.choices import Device
from router.config.flags.command_line import add_flag
from router.config.flags.config_file import read_config_file
from router.config.flags.text_settings import environment_of
from router.config.flags.validation import problems_of
from router.config.flags.values import ConfigError
from router.config.settings import RouterConfig
from router.config.table import SETTINGS, configured

_DESCRIPTION: Final = """\
Check this machine before a cluster is started on it. Prints a row per check, and advice below those that
fail. Takes some ten seconds without GPUs. With --ray-address: check every node of that cluster, and the link
from each node to the next. Exit status: 0; 1 if a row says FAIL; 2 on usage errors."""

_EXAMPLES: Final = """\
what the rows mean:
  OK     passed
  WARN   works, but slower or with less memory than possible
  FAIL   does not work, or is too slow for disaggregation to be useful

the rows of links:
  Each starts two processes, one of which writes blocks of 64 MiB into the other's memory, through the KV
  transport, with the environment of --worker-env. UCX transports: cuda_ipc is NVLink or PCIe between GPUs,
  cma copies between processes of one host, rc_mlx5 is InfiniBand. Between GPUs, anything slower than PCIe is
  a FAIL: KV is then staged in host memory.

the rows of --transports:
  One per UCX transport, in place of all others: bandwidth, and CPU time of the writing and of the receiving
  process, polled as workers poll. tcp copies through the kernel at both ends, cma once, at the writer's; rc
  (InfiniBand) and cuda_ipc not at all.

the rows of --ray-address:
  One per node: packages, limits, clock, model; each failed check has its own row. Then, from each node to the
  next, whether a port of --worker-ports can be reached, and the KV bandwidth with the environment of
  --worker-env, measured as above. Can run beside a router, whose load then lowers the figures.

examples:
  router doctor                                         this machine
  router doctor --model smollm2                         also the model, and how much KV fits
  router doctor --transports                            UCX transports: GB/s and CPU seconds per GB
  router doctor --model /models/8B --device cuda        also require a GPU
  router doctor --config ~/baton/router.yaml            the cluster of its ray-address, on the head
"""
_FLAGS: Final = (
    "model",
    "device",
    "dtype",
    "page_size",
    "host",
    "http_port",
    "grpc_port",
    "admin_port",
    "ray_address",
    "wait_for_nodes",
    "startup_timeout",
    "worker_network",
    "worker_ports",
    "worker_env",
)


def run(argv: Sequence[str]) -> int:
    """Takes the arguments after "doctor". Exit status: 0, 1 if a check failed, 2 for wrong flags or files."""
    try:
        config, only_transports = _parse(argv)
    except ConfigError as error:
        print(*(f"router doctor: {problem}" for problem in error.problems), sep="\n", file=sys.stderr)
        return 2
    findings = []
    for finding in _transports(config) if only_transports else _examine(config):
        findings.append(finding)
        print(*lines_of(finding), sep="\n", flush=True)
    counts = {verdict: sum(f.verdict is verdict for f in findings) for verdict in Verdict}
    print(f"\n{', '.join(f'{count} {verdict.value}' for verdict, count in counts.items())}")
    return exit_status(findings)


def _examine(config: RouterConfig) -> Iterator[Finding]:
    if config.cluster.ray_address is not None:
        yield from nodes.check(config)
        return
    found = [] if config.device is Device.CPU else gpus.find()
    pairs = gpus.pairs_of(found)
    yield from software.check(on_gpu=bool(found))
    if config.device is not Device.CPU:
        yield from gpus.check(found, pairs, is_wanted=config.device is Device.CUDA)
    host = config.frontend.host
    addresses = {
        "--http-port": (host, config.frontend.http_port),
        "--grpc-port": (host, config.frontend.grpc_port),
        "--admin-port": (LOOPBACK, config.effective_admin_port),
    }
    yield from machine.check(addresses)
    yield from links.check(found, pairs, environment_of(config.cluster.worker_env))
    if config.model:
        yield from model.check(config, found, on_gpu=bool(found))


def _transports(config: RouterConfig) -> Iterator[Finding]:
    has_gpu = config.device is not Device.CPU and bool(gpus.find())
    yield from transports.check(has_gpu=has_gpu, environment=environment_of(config.cluster.worker_env))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="router doctor",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,  # for flags that are not given, the file's value applies
    )
    for name in _FLAGS:
        add_flag(parser, SETTINGS[name])
    parser.add_argument("--config", type=Path, metavar="FILE", help="the router's settings")
    parser.add_argument(
        "--transports",
        action="store_true",
        default=False,
        help="only measure GB/s and CPU seconds per GB of each UCX transport of this machine",
    )
    return parser


def _parse(argv: Sequence[str]) -> tuple[RouterConfig, bool]:
    """The settings, and whether only transports are measured. Raises ConfigError."""
    given: dict[str, Any] = vars(make_parser().parse_args(argv))
    path, only_transports = given.pop("config", None), given.pop("transports")
    config = configured({**(read_config_file(path).settings if path else {}), **given})
    # The model is optional here.
    problems = problems_of(config if config.model else replace(config, model="smollm2"))
    if only_transports and config.cluster.ray_address is not None:
        problems.append("--transports measures this machine; leave --ray-address out")
    if problems:
        raise ConfigError(problems)
    return config, only_transports
