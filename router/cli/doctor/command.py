"""`router doctor`: parses its flags, looks at one thing after the other, prints rows as they come."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

from router.cli.doctor import gpus, links, machine, model, software
from router.cli.doctor.report import Finding, Verdict, exit_status, lines_of
from router.config.settings import SETTINGS, Device, Dtype, RouterConfig

__all__ = ["run"]

_DESCRIPTION: Final = """\
Check this machine before a cluster is started on it: one row for each thing that has to be right, and below
it what to do if it is not. Takes some ten seconds without GPUs. Exit status: 0, or 1 if a row says FAIL."""

_EXAMPLES: Final = """\
what the rows mean:
  OK     as it should be
  WARN   it will run, but slower or with less than it could
  FAIL   it will not run, or so slowly that disaggregation is not worth while

the rows of links:
  Two processes are started for each, and one writes blocks of 64 MiB into the other's memory, through the
  transport that moves KV. The way is named as UCX names it: cuda_ipc is NVLink or PCIe between GPUs, cma and
  sysv are shared memory, rc_mlx5 is InfiniBand. From GPU to GPU anything slower than PCIe is a FAIL, for then
  KV goes by way of the host.

examples:
  router doctor                                         this machine
  router doctor --model smollm2                         and whether the model is there, and how much KV fits
  router doctor --model /models/8B --device cuda        and insist on a GPU
"""


def run(argv: Sequence[str]) -> int:
    """Exit status: 0, or 1 when something failed."""
    arguments = _parser().parse_args(argv[1:])
    findings = []
    for finding in _examine(arguments):
        findings.append(finding)
        print(*lines_of(finding), sep="\n", flush=True)
    counts = {verdict: sum(f.verdict is verdict for f in findings) for verdict in Verdict}
    print(f"\n{', '.join(f'{count} {verdict.value}' for verdict, count in counts.items())}")
    return exit_status(findings)


def _examine(arguments: argparse.Namespace) -> Iterator[Finding]:
    device = Device(arguments.device)
    found = [] if device is Device.CPU else gpus.find()
    pairs = gpus.pairs_of(found)
    yield from software.look(on_gpu=bool(found))
    if device is not Device.CPU:
        yield from gpus.look(found, pairs, is_wanted=device is Device.CUDA)
    ports = {"--http-port": arguments.http_port, "--grpc-port": arguments.grpc_port}
    yield from machine.look(arguments.host, ports)
    yield from links.look(found, pairs)
    if arguments.model:
        config = RouterConfig(
            model=arguments.model,
            device=device,
            dtype=Dtype(arguments.dtype),
            page_size=arguments.page_size,
        )
        yield from model.look(config, found, on_gpu=bool(found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="router doctor",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name in ("model", "device", "dtype", "page_size", "host", "http_port", "grpc_port"):
        setting = SETTINGS[name]
        default = getattr(setting.default, "value", setting.default)
        choices = [kind.value for kind in setting.type] if issubclass(setting.type, Enum) else None
        parser.add_argument(
            setting.flag,
            default=default,
            choices=choices,
            type=setting.type if choices is None else str,
            metavar=setting.option.metavar,
            help=setting.option.help,
        )
    return parser
