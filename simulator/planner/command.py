"""`router plan`: which mode, split and tensor parallelism serve a load best on N GPUs, by simulation."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from engine.model_config.model_spec import ModelSpec
from router.placement import Targets
from simulator.lengths import Lengths, parse_lengths
from simulator.planner.advice import Advice, advise, ranked
from simulator.planner.candidates import Candidate, DoesNotFit, candidates
from simulator.planner.costs import Basis
from simulator.planner.hardware import GPUS
from simulator.planner.load import LoadDraws, drawn, of_trace
from simulator.planner.model_shape import SHAPES, UnknownModel, shape_of
from simulator.planner.prediction import Prediction, predictions
from simulator.traffic import mooncake

_USAGE_ERROR: Final = 2
_FILE_WIDTH: Final = 140
"""Width of the output if it is not a terminal."""
_DESCRIPTION: Final = """\
Recommend a cluster configuration for a load, by simulation, without a GPU. Candidates are mixed workers,
every split of --mode disagg into prefill and decode workers, and --mode adaptive, each with every tensor
parallelism that fits. Each serves the load on simulated workers, with the router's placement, the engine's
scheduler and a formula for step times. The table is sorted by the share of answers with TTFT and TPOT within
the targets."""
_EXAMPLES: Final = f"""\
examples:
  router plan --model llama-3.1-8b --gpus 2 --prompt-tokens lognormal:2048:0.8:16384 \\
         --output-tokens uniform:128:512 --rate 14 --ttft-target-ms 500 --itl-target-ms 15
  router plan --model /models/Qwen3-32B --gpus 8 --gpu h100 --trace conversation_trace.jsonl --most 2000

lengths:
  512                          constant
  uniform:128:512              uniform between the two
  lognormal:2048:0.8:16384     log-normal: median, sigma, maximum (longer ones are cut)

--model is a folder with config.json, that file, a hub id, or one of {", ".join(SHAPES)};
weights are not read.
Traces are in Mooncake's format: JSON lines with timestamp (ms), input_length, output_length and hash_ids.

Step times are "measured" for Llama-3.1-8B's shape on an H200, and "estimated" for all others: scaled by a
roofline from the model's size and the GPU's peak numbers. Compare candidates with each other rather than
with a target; then measure the best two (python -m benchmarks.modes).

Exit status: 0; 1 if nothing keeps --good of the answers within the targets; 2 on usage errors."""


_GENERAL: Final = (
    "This model is served by transformers' modules, whose steps take longer than those predicted here: see"
    " docs/models.md."
)


class _WrongUse(Exception):
    """The message names the flag."""


def run(argv: Sequence[str]) -> int:
    """Takes the arguments after "plan"; returns the exit status."""
    console = Console() if sys.stdout.isatty() else Console(width=_FILE_WIDTH)
    try:
        options = make_parser().parse_args(argv)
        targets = _targets(options)
        model = _model(options)
        load = _load(options)
        found = _candidates(options, model, targets, load)
    except _WrongUse as error:
        print(f"router plan: {error}", file=sys.stderr)
        return _USAGE_ERROR
    predicted = _predict(found, load, targets)
    advice = advise(predicted, targets, options.good)
    console.print(_table(ranked(predicted), _title(options, load, targets, predicted)))
    if model.general is not None:
        console.print(_GENERAL, highlight=False, soft_wrap=True)
    _say(console, options, advice, targets)
    return 0 if advice.meets else 1


def _targets(options: argparse.Namespace) -> Targets:
    for flag, value in (("ttft", options.ttft_target_ms), ("itl", options.itl_target_ms)):
        if not 0 < value < float("inf"):
            raise _WrongUse(f"--{flag}-target-ms {value:g}: use milliseconds above 0")
    if not 0 < options.good <= 1:
        raise _WrongUse(f"--good {options.good:g}: use a share above 0, and 1 at most")
    return Targets(options.ttft_target_ms / 1e3, options.itl_target_ms / 1e3)


def _model(options: argparse.Namespace) -> ModelSpec:
    try:
        return shape_of(options.model)
    except UnknownModel as error:
        raise _WrongUse(f"--model {options.model}: {error}") from error


def _load(options: argparse.Namespace) -> LoadDraws:
    asked = {"--prompt-tokens": options.prompt_tokens, "--output-tokens": options.output_tokens}
    asked["--rate"] = options.rate
    if options.trace is not None:
        if given := [flag for flag, value in asked.items() if value is not None]:
            raise _WrongUse(
                f"{given[0]}: the lengths and the rate are those of --trace; give the one or the other"
            )
        return _trace(options)
    if missing := [flag for flag, value in asked.items() if value is None]:
        raise _WrongUse(f"{missing[0]} is missing: give --trace, or all of {', '.join(asked)}")
    if not 0 < options.rate < float("inf"):
        raise _WrongUse(f"--rate {options.rate:g}: use requests a second, above 0")
    if options.rate * options.seconds < 10:
        raise _WrongUse(
            f"--seconds {options.seconds:g} at --rate {options.rate:g} are fewer than 10 requests; use more"
        )
    return drawn(
        options.prompt_tokens,
        options.output_tokens,
        options.rate,
        seconds=options.seconds,
        warm_up=options.warm_up,
        seeds=range(1, options.seeds + 1),
    )


def _trace(options: argparse.Namespace) -> LoadDraws:
    if options.speed <= 0:
        raise _WrongUse(f"--speed {options.speed:g}: use a factor above 0")
    try:
        return of_trace(mooncake(options.trace, speed=options.speed, most=options.most))
    except (OSError, ValueError) as error:
        raise _WrongUse(f"--trace {options.trace}: {error}") from error


def _candidates(
    options: argparse.Namespace, model: ModelSpec, targets: Targets, load: LoadDraws
) -> list[Candidate]:
    if options.gpus < 1:
        raise _WrongUse(f"--gpus {options.gpus}: use 1 or more")
    if load.longest > model.max_position:
        flags = "--trace" if options.trace is not None else "--prompt-tokens and --output-tokens"
        raise _WrongUse(
            f"{flags}: the longest request has {load.longest:,} tokens,"
            f" and the model's context {model.max_position:,}"
        )
    gpu = GPUS[options.gpu]
    try:
        return candidates(model, gpu, options.gpus, targets, load.longest, radix_cache=load.shares_prefixes)
    except DoesNotFit as error:
        raise _WrongUse(f"--gpus {options.gpus} --gpu {options.gpu}: {error}") from error


def _predict(found: Sequence[Candidate], load: LoadDraws, targets: Targets) -> list[Prediction]:
    console = Console(stderr=True)
    bars = Progress(
        TextColumn("simulating {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bars.add_task(f"{len(found)} candidates, {load.requests:,} requests", total=None)
    lines = _Lines(f"simulating {len(found)} candidates, {load.requests:,} requests")

    def progress(done: int, total: int) -> None:
        bars.update(task, completed=done, total=total)
        if not console.is_terminal:
            lines.show(done, total)

    with bars:
        return predictions(found, load, targets, progress)


@dataclass
class _Lines:
    """Progress without a terminal: a line on standard error for each tenth."""

    what: str
    tenths: int = -1

    def show(self, done: int, total: int) -> None:
        tenths = 10 * done // max(total, 1)
        if tenths > self.tenths:
            self.tenths = tenths
            print(f"{self.what}: {tenths * 10}%", file=sys.stderr, flush=True)


def _title(
    options: argparse.Namespace, load: LoadDraws, targets: Targets, predicted: Sequence[Prediction]
) -> str:
    if options.trace is not None:
        arrivals = f"{options.trace.name}, {load.rate:.2f} requests/s"
    else:
        arrivals = f"Poisson arrivals at {options.rate:g} requests/s ({load.rate:.2f} drawn)"
    bases = {prediction.candidate.basis for prediction in predicted}
    if bases == {Basis.MEASURED}:
        times = "step times measured on this model's shape and GPU"
    elif bases == {Basis.ESTIMATED}:
        times = "step times estimated: a roofline, scaled from Llama-3.1-8B on an H200"
    else:
        times = "step times measured with TP 1, estimated by a roofline with more"
    return (
        f"Predicted by simulation; {options.model} on {options.gpus} x {options.gpu}, {times}\n"
        f"{arrivals}; good: TTFT ≤ {1e3 * targets.ttft_s:g} ms,"
        f" TPOT ≤ {1e3 * targets.tpot_s:g} ms"
    )


def _table(best_first: Sequence[Prediction], title: str) -> Table:
    table = Table(title=title, title_justify="left", show_edge=False)
    for name in ("mode", "P:D"):
        table.add_column(name)
    for name in (
        "TP",
        "chunk",
        "step target",
        "good",
        "good/s",
        "TTFT p50, ms",
        "p99",
        "TPOT p50, ms",
        "p99",
    ):
        table.add_column(name, justify="right")
    table.add_column("step times")
    for each in best_first:
        candidate = each.candidate
        step = f"{1e3 * candidate.step_s:.1f} ms" if candidate.step_s is not None else "default"
        table.add_row(
            candidate.mode.value,
            candidate.split,
            str(candidate.ranks),
            f"{candidate.chunk:,}",
            step,
            f"{each.good:.1%}" if each.is_full else f"~{each.good:.0%}",
            f"{each.goodput:.2f}" if each.is_full else f"~{each.goodput:.1f}",
            *(_ms(t, ",.0f") for t in (each.ttft_p50, each.ttft_p99)),
            *(_ms(t, ".1f") for t in (each.tpot_p50, each.tpot_p99)),
            candidate.basis.value,
        )
    if not all(each.is_full for each in best_first):
        table.caption = "~ simulated for the first part of the load only, which others served better"
        table.caption_justify = "left"
    return table


def _ms(seconds: float, form: str) -> str:
    return "late" if seconds == float("inf") else format(1e3 * seconds, form)


def _say(console: Console, options: argparse.Namespace, advice: Advice, targets: Targets) -> None:
    console.print(advice.text, highlight=False, soft_wrap=True)
    if advice.meets:
        flags = advice.best.candidate.flags(targets)
        is_shape = options.model in SHAPES  # a name of this command alone
        command = shlex.join(["router", "--model", "MODEL" if is_shape else options.model, *flags])
        console.print(f"  {command}", highlight=False, soft_wrap=True)
        if is_shape:
            console.print(f"  MODEL: a folder or hub id with the weights of {options.model}", highlight=False)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _WrongUse(message.removeprefix("argument "))


def _lengths(text: str) -> Lengths:
    try:
        return parse_lengths(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="router plan",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        usage="router plan --model MODEL --gpus N"
        " (--trace FILE | --prompt-tokens … --output-tokens … --rate …) [flags]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    machine = parser.add_argument_group("model and machine")
    machine.add_argument("--model", required=True, metavar="MODEL", help="see below")
    machine.add_argument("--gpus", type=int, required=True, metavar="N", help="number of GPUs, in one host")
    machine.add_argument(
        "--gpu",
        choices=sorted(GPUS),
        default="h200",
        metavar="TYPE",
        help=f"{', '.join(GPUS)} (default: h200)",
    )
    load = parser.add_argument_group("load")
    load.add_argument("--trace", type=Path, metavar="FILE", help="trace to replay, in Mooncake's format")
    load.add_argument("--speed", type=float, default=1.0, metavar="X", help="replay speed (default: 1)")
    load.add_argument(
        "--most", type=int, metavar="N", help="largest number of requests of the trace (default: all)"
    )
    load.add_argument("--prompt-tokens", type=_lengths, metavar="LENGTHS", help="prompt lengths, see below")
    load.add_argument("--output-tokens", type=_lengths, metavar="LENGTHS", help="output lengths, see below")
    load.add_argument("--rate", type=float, metavar="R", help="requests per second, Poisson arrivals")
    load.add_argument(
        "--seconds", type=float, default=40.0, metavar="S", help="measured seconds per seed (default: 40)"
    )
    load.add_argument(
        "--warm-up", type=float, default=15.0, metavar="S", help="seconds before those (default: 15)"
    )
    load.add_argument("--seeds", type=int, default=2, metavar="N", help="number of random loads (default: 2)")
    targets = parser.add_argument_group("targets")
    targets.add_argument(
        "--ttft-target-ms", type=float, default=500.0, metavar="MS", help="TTFT (default: 500)"
    )
    targets.add_argument(
        "--itl-target-ms",
        type=float,
        default=20.0,
        metavar="MS",
        help="TPOT, the mean time between tokens (default: 20)",
    )
    targets.add_argument(
        "--good",
        type=float,
        default=0.9,
        metavar="SHARE",
        help="required share of answers within both (default: 0.9)",
    )
    return parser
