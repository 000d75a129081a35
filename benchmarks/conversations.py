"""Conversations: sessions of several turns, each turn sent when the answer before it has come.

    python -m benchmarks.conversations --model smollm2 --sessions 6 -- --kv-pool-tokens 2048
    python -m benchmarks.conversations --base-url http://127.0.0.1:30000 --trace mooncake.jsonl
    python -m benchmarks.conversations --base-url http://127.0.0.1:8000 --base-url http://127.0.0.1:8001

Without --base-url it starts `router` twice, with the flags after `--`: without KV tiers and with them, and
compares the answers. Each server is then restarted, and every session goes on for a turn.

    python -m benchmarks.conversations --variant=--pull-kv -- --mode disagg

compares servers without and with these flags instead, without a restart; odd seeds in the other order.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import shlex
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.lib.command import command, save_json
from benchmarks.lib.load.client import Record, Target, only_model, open_client, send
from benchmarks.lib.load.conversations import Distribution, Session, Turn, draw_sessions, read_trace
from benchmarks.lib.load.workload import Work, ids_of
from benchmarks.lib.provenance import provenance
from benchmarks.lib.report import Percentiles
from benchmarks.lib.servers.server import BatonServer

History: TypeAlias = str | list[int]
"""What was said in a session, as text or as token ids."""

_USUAL: Final = {
    "turns": "3",
    "gap_ms": "200",
    "opening": "60",
    "openings": 2,
    "first": "uniform:150:250",
    "later": "uniform:60:100",
    "tool": "uniform:120:200",
    "tool_share": 0.3,
    "output": "8",
    "branch_share": 0.2,
}


@dataclass(frozen=True, slots=True)
class Said:
    """A turn of a session, or of a sub-agent."""

    session: int
    turn: int
    """0: the first, of whose prompt only other sessions may have computed a part."""
    record: Record


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one run; times in seconds."""

    failed: int
    first_ttft: Percentiles
    later_ttft: Percentiles
    tpot: Percentiles
    prompt_tokens: int
    cached_tokens: int
    promoted_tokens: dict[str, int]
    """Cached tokens that came from tiers, by tier."""
    tokens_per_s: Percentiles
    """Output tokens of an answer divided by its end-to-end latency."""
    good: float
    """Share of all turns that were answered within the targets of TTFT and TPOT."""
    cpu_s: float = 0.0
    """CPU time of the router and its workers; 0 for a server that was not started here."""

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens


async def replay(
    targets: Sequence[Target], sessions: Sequence[Session], histories: dict[int, History], *, token_ids: bool
) -> list[Said]:
    """Send all turns; sessions take turns among the targets. `histories`: what was said before in a session;
    what was said now is added to it. `token_ids`: prompts are lists of them."""
    said: list[Said] = []
    start = time.monotonic()

    async def talk(number: int, history: History, turns: Sequence[Turn], first: int) -> History:
        target = number % len(targets)
        for index, turn in enumerate(turns, first):
            await asyncio.sleep(turn.gap_s)
            history = _with_text(history, turn.text)
            record = await send(clients[target], targets[target], Work(0.0, history, turn.max_tokens))
            said.append(Said(number, index, record))
            history = _with_answer(history, record)
            if branch := sessions[number].branches.get(index):
                agents.append(asyncio.create_task(talk(number, history, branch, index + 1)))
        return history

    async def run(number: int, session: Session) -> None:
        await asyncio.sleep(max(0.0, start + session.start_s - time.monotonic()))
        history = histories.get(number)
        first = int(history is not None)
        if history is None:
            history = ids_of(session.opening) if token_ids else session.opening
        histories[number] = await talk(number, history, session.turns, first)

    agents: list[asyncio.Task[History]] = []
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(open_client(target)) for target in targets]
        await asyncio.gather(*(run(number, session) for number, session in enumerate(sessions)))
        while agents:
            await agents.pop()
    return said


def _with_text(history: History, text: str) -> History:
    return f"{history} {text}" if isinstance(history, str) else history + ids_of(text)


def _with_answer(history: History, record: Record) -> History:
    return history + "".join(record.pieces) if isinstance(history, str) else history + record.token_ids


def figures_of(
    said: Iterable[Said], ttft: float = math.inf, tpot: float = math.inf, cpu_s: float = 0.0
) -> Figures:
    """`ttft` and `tpot`: targets in seconds."""
    turns = [(each.turn, each.record) for each in said]
    good = [(turn, record) for turn, record in turns if record.error is None]
    promoted: dict[str, int] = {}
    for _, record in good:
        for tier, tokens in ((record.timings or {}).get("promoted") or {}).items():
            promoted[tier] = promoted.get(tier, 0) + tokens
    return Figures(
        failed=len(turns) - len(good),
        first_ttft=Percentiles.of(record.ttft for turn, record in good if turn == 0),
        later_ttft=Percentiles.of(record.ttft for turn, record in good if turn > 0),
        tpot=Percentiles.of(record.tpot for _, record in good if record.output_tokens > 1),
        prompt_tokens=sum(record.prompt_tokens for _, record in good),
        cached_tokens=sum(record.cached_tokens for _, record in good),
        promoted_tokens=promoted,
        tokens_per_s=Percentiles.of(record.output_tokens / record.e2e for _, record in good),
        good=sum(record.ttft <= ttft and record.tpot <= tpot for _, record in good) / len(turns),
        cpu_s=cpu_s,
    )


def main() -> None:
    options = make_parser().parse_args()
    if options.trace is not None:
        sessions = read_trace(options.trace, options.seed)[: options.sessions]
    else:
        given = Distribution.of(_USUAL) if options.lengths is None else Distribution.read(options.lengths)
        sessions = draw_sessions(given, options.sessions, options.rate, options.seed)
    if options.base_url is not None:
        targets = [_target(url, token_ids=options.token_ids) for url in options.base_url]
        said = asyncio.run(replay(targets, sessions, {}, token_ids=options.token_ids))
        runs = {"server": figures_of(said, options.ttft, options.tpot)}
        same = None
    elif options.variant is not None:
        runs, same = _paired(options, sessions)
    else:
        runs, same = _compared(options, sessions)
    Console().print(_table(runs))
    if same is not None:
        print("answers are the same:", "yes" if same else "NO")
    if options.output is not None:
        found = {name: asdict(run) | {"computed_tokens": run.computed_tokens} for name, run in runs.items()}
        content = {"made_with": provenance(), "flags": options.flags, "same_answers": same, "runs": found}
        content |= {"seed": options.seed, "variant": options.variant}
        save_json(options.output, content, indent=1)
    if same is False:
        raise SystemExit(1)


def _paired(options: argparse.Namespace, sessions: Sequence[Session]) -> tuple[dict[str, Figures], bool]:
    """Without the flags of the variant and with them."""
    sides = [("without", []), (f"with {options.variant}", shlex.split(options.variant))]
    runs: dict[str, Figures] = {}
    answers = []
    for name, own in sides[:: -1 if options.seed % 2 else 1]:
        with BatonServer("--model", options.model, *options.flags, *own) as server:
            before = _cpu_seconds(server.pid)
            targets = [_target(server.url, token_ids=options.token_ids)]
            said = asyncio.run(replay(targets, sessions, {}, token_ids=options.token_ids))
            cpu_s = _cpu_seconds(server.pid) - before
            runs[name] = figures_of(said, options.ttft, options.tpot, cpu_s)
        answers.append(_texts(said))
    return runs, answers[0] == answers[1]


def _cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and its descendants."""
    root = psutil.Process(pid)
    times = [process.cpu_times() for process in (root, *root.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def _compared(options: argparse.Namespace, sessions: Sequence[Session]) -> tuple[dict[str, Figures], bool]:
    flags = ["--model", options.model, *options.flags]
    more = [Session(0.0, "", [session.turns[-1]]) for session in sessions]
    runs: dict[str, Figures] = {}
    answers = []
    with tempfile.TemporaryDirectory() as folder:
        tiers = ["--host-kv-gb", str(options.host_kv_gb), "--disk-kv-dir", folder]
        for name, own in (("without tiers", []), ("with tiers", tiers)):
            histories: dict[int, History] = {}
            rounds = []
            for restarted, part in ((False, sessions), (True, more)):
                with BatonServer(*flags, *own) as server:
                    targets = [_target(server.url, token_ids=options.token_ids)]
                    said = asyncio.run(replay(targets, part, histories, token_ids=options.token_ids))
                    time.sleep(options.settle_s)
                rounds.append(said)
                runs[f"{name}, restarted" if restarted else name] = figures_of(
                    said, options.ttft, options.tpot
                )
            answers.append([_texts(said) for said in rounds])
    return runs, answers[0] == answers[1]


def _texts(said: Sequence[Said]) -> list[tuple[int, int, str]]:
    return sorted((each.session, each.turn, "".join(each.record.pieces)) for each in said)


def _target(url: str, *, token_ids: bool) -> Target:
    extra: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "timings": True}
    if token_ids:
        extra["return_token_ids"] = True
    return Target(url, only_model(url), extra=extra)


def _table(runs: dict[str, Figures]) -> Table:
    table = Table(title="conversations")
    for column in (
        "",
        "first TTFT p50",
        "later TTFT p50",
        "p90",
        "TPOT p50",
        "good",
        "prompt",
        "cached",
        "promoted",
    ):
        table.add_column(column, justify="left" if not column else "right")
    for column in ("computed", "tok/s p50", "CPU"):
        table.add_column(column, justify="right")
    for name, run in runs.items():
        table.add_row(
            name + (f" ({run.failed} failed)" if run.failed else ""),
            *(f"{t:.2f} s" for t in (run.first_ttft.p50, run.later_ttft.p50, run.later_ttft.p90)),
            f"{run.tpot.p50 * 1e3:.1f} ms",
            f"{run.good:.1%}",
            str(run.prompt_tokens),
            str(run.cached_tokens),
            ", ".join(f"{tokens} {tier}" for tier, tokens in run.promoted_tokens.items()) or "0",
            str(run.computed_tokens),
            f"{run.tokens_per_s.p50:.1f}",
            f"{run.cpu_s:.1f} s" if run.cpu_s else "",
        )
    return table


def make_parser() -> argparse.ArgumentParser:
    parser = command("conversations", __doc__)
    parser.add_argument(
        "--base-url",
        action="append",
        help="of a running server, without /v1; sessions take turns among several",
    )
    parser.add_argument("--token-ids", action="store_true", help="send token ids, not text")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--sessions", type=int, default=6, metavar="N")
    parser.add_argument(
        "--rate", type=float, default=math.inf, help="sessions a second (default: all at once)"
    )
    parser.add_argument("--lengths", type=Path, metavar="FILE.json", help="what sessions are drawn from")
    parser.add_argument("--trace", type=Path, metavar="FILE.jsonl", help="a trace in Mooncake's format")
    parser.add_argument("--host-kv-gb", type=float, default=1.0, metavar="GIB", help="of the run with tiers")
    parser.add_argument("--variant", metavar="FLAGS", help="of `router`, to be compared instead of KV tiers")
    parser.add_argument("--settle-s", type=float, default=2.0, help="pause before the server is stopped")
    parser.add_argument(
        "--ttft", type=float, default=math.inf, metavar="SECONDS", help="target of good answers"
    )
    parser.add_argument(
        "--tpot", type=float, default=math.inf, metavar="SECONDS", help="target of good answers"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    parser.add_argument("flags", nargs="*", help="of `router`, after --")
    return parser


if __name__ == "__main__":
    main()
