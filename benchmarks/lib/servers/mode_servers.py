"""Servers for a comparison of modes: the same workers, with flags per mode."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from benchmarks.lib.load.client import Record
from benchmarks.lib.report import Objective
from benchmarks.lib.servers.server import BatonServer, ServerFailed

MODES: Final = ("mixed", "disagg", "adaptive")
MODEL_NAME: Final = "model"
"""Under which requests name the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeServers:
    model: str
    device: str
    workers: int
    prefill_workers: int
    """Prefill workers among `workers`, with disagg and adaptive."""
    objective: Objective
    """Its targets for TTFT and TPOT become those of `--mode adaptive`."""
    flags: tuple[str, ...] = ()
    """For every mode."""
    mode_flags: Mapping[str, tuple[str, ...]]
    """Flags by mode; they come last, so they override the others."""

    @classmethod
    def of(cls, options: argparse.Namespace, objective: Objective) -> Self:
        """From the flags of `mode_arguments`. Raises SystemExit for workers that cannot be split."""
        splits = set(options.modes) - {"mixed"}
        if splits and not 1 <= options.prefill_workers < options.workers:
            raise SystemExit(
                f"--prefill-workers {options.prefill_workers} of --workers {options.workers}: "
                "both kinds need at least one"
            )
        return cls(
            model=options.model,
            device=options.device,
            workers=options.workers,
            prefill_workers=options.prefill_workers,
            objective=objective,
            flags=tuple(shlex.split(options.flags)),
            mode_flags={mode: tuple(shlex.split(getattr(options, f"{mode}_flags"))) for mode in MODES},
        )

    def flags_for(self, mode: str) -> list[str]:
        """Flags of the `router` command."""
        flags = ["--mode", mode, "--model", self.model, "--served-model-name", MODEL_NAME]
        flags += ["--device", self.device, "--disable-radix-cache"]
        if mode == "mixed":
            flags += ["--decode-workers", str(self.workers)]
        else:
            decode_workers = self.workers - self.prefill_workers
            flags += ["--prefill-workers", str(self.prefill_workers), "--decode-workers", str(decode_workers)]
        if mode == "adaptive":
            flags += _targets(self.objective)
        return [*flags, *self.flags, *self.mode_flags[mode]]

    def server(self, mode: str) -> BatonServer:
        return BatonServer(*self.flags_for(mode))


def _targets(objective: Objective) -> list[str]:
    flags = []
    if objective.ttft_s is not None:
        flags += ["--ttft-target-ms", f"{1e3 * objective.ttft_s:g}"]
    if objective.tpot_s is not None:
        flags += ["--itl-target-ms", f"{1e3 * objective.tpot_s:g}"]
    return flags


def require_answers(records: Sequence[Record]) -> None:
    """Raises ServerFailed if there are requests and none was answered."""
    errors = [record.error for record in records if record.error is not None]
    if records and len(errors) == len(records):
        raise ServerFailed(f"none of {len(records)} requests was answered; the first: {errors[0]}")


def modes_in(text: str) -> tuple[str, ...]:
    """For argparse: "mixed,adaptive", or "none"."""
    if text == "none":
        return ()
    modes = tuple(dict.fromkeys(text.split(",")))
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no mode; there are {', '.join(MODES)}")
    return modes


def mode_arguments(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument("--model", default="smollm2", help="as for `router --model` (smollm2)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument(
        "--modes",
        type=modes_in,
        default=",".join(MODES),
        metavar="MODE,…",
        help="mixed,disagg,adaptive, or none (all)",
    )
    parser.add_argument(
        "--workers", type=int, default=2, metavar="N", help="number of workers, of both roles together (2)"
    )
    parser.add_argument(
        "--prefill-workers",
        type=int,
        default=1,
        metavar="N",
        help="prefill workers among --workers, with disagg and at the start of adaptive (1)",
    )
    parser.add_argument(
        "--flags", default="", metavar="'FLAGS'", help="additional flags of `router`, for every mode"
    )
    for mode in MODES:
        parser.add_argument(
            f"--{mode}-flags", default="", metavar="'FLAGS'", help=f"additional flags, for {mode} only"
        )
