"""Questions a second about one state: decisions against chat with one token, or decisions of a service.

    python -m benchmarks.decisions --model smollm2 --state 6000 --questions 50 --device cpu
    python -m benchmarks.decisions --model FOLDER --tokenizer smollm2 --load-format dummy --device cuda
    python -m benchmarks.decisions --base-url http://127.0.0.1:30000 --at-once 1,4

Each round has a state of its own, which no cache knows. `decisions`: `LLM.decide` with all questions.
`chat together`: `LLM.chat` with a conversation for each question, one greedy token and 20 log-probabilities.
`chat in turn`: the same, one after another. FOLDER has a config.json; weights are random, the tokenizer is
that of another model. CPU seconds are comparable on a machine that others use too.

With --base-url, `POST /v1/decisions` of a running router is measured. Each number of --at-once is a number of
requests that are sent together, each with all questions about a state of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
from rich.console import Console
from rich.table import Table

from baton import LLM, SamplingParams
from benchmarks.lib.command import command, save_json
from benchmarks.lib.load.client import only_model
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.model_folder import with_tokenizer

_WORDS: Final = (
    *("parcel", "order", "late", "invoice", "customer", "driver", "street"),
    *("window", "paid", "broken", "blue", "heavy", "ten", "sent"),
)
_LINE: Final = 18
"""Tokens of a line of the state, about."""
_TIMEOUT_S: Final = 600.0
"""Seconds that a request to a service may take."""
_ONE_TOKEN: Final = SamplingParams(temperature=0, max_tokens=1, logprobs=20)


class Questions:
    """A state of about this many tokens, and questions about it."""

    def __init__(self, tokens: int, count: int, seed: str) -> None:
        rng = random.Random(seed)
        lines = [f"{seed}: {' '.join(rng.choices(_WORDS, k=12))}." for _ in range(tokens // _LINE)]
        self.state = "\n".join(lines)
        self.questions: list[dict[str, Any]] = [
            {
                "type": "choice",
                "instructions": f"Which team answers line {rng.randrange(len(lines))}?",
                "choices": [{"value": name} for name in ("billing", "delivery", "returns", "none")],
            }
            for _ in range(count)
        ]

    def conversation(self, question: dict[str, Any]) -> list[dict[str, str]]:
        options = "\n".join(f"{'ABCD'[i]}. {c['value']}" for i, c in enumerate(question["choices"]))
        asked = f"{question['instructions']}\n{options}\nAnswer with the letter of one option alone."
        return [{"role": "user", "content": f"{self.state}\n\n{asked}"}]


def decisions(llm: LLM, asked: Questions) -> None:
    assert len(llm.decide(asked.state, asked.questions)) == len(asked.questions)


def chat_together(llm: LLM, asked: Questions) -> None:
    llm.chat([asked.conversation(q) for q in asked.questions], _ONE_TOKEN, progress=False)


def chat_in_turn(llm: LLM, asked: Questions) -> None:
    for question in asked.questions:
        llm.chat(asked.conversation(question), _ONE_TOKEN, progress=False)


WAYS: Final[dict[str, Callable[[LLM, Questions], None]]] = {
    "decisions": decisions,
    "chat together": chat_together,
    "chat in turn": chat_in_turn,
}


def measure(llm: LLM, options: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Seconds of each way, by round, and of the CPU; the first round is not counted. Ways take turns."""
    seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for number in range(options.rounds + 1):
        order = list(WAYS)
        order = order[number % len(order) :] + order[: number % len(order)]
        for way in order:
            asked = Questions(options.state, options.questions, f"{way} {number}")
            began, used = time.perf_counter(), time.process_time()
            WAYS[way](llm, asked)
            if number:
                seconds[way].append((time.perf_counter() - began, time.process_time() - used))
    return seconds


async def served(options: argparse.Namespace) -> dict[int, list[list[float]]]:
    """Seconds of the requests of each round, by how many are sent together; the first round is not counted.

    Raises httpx.HTTPError.
    """
    url, model = options.base_url, only_model(options.base_url)
    limits = httpx.Limits(max_connections=None)
    client = httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S, limits=limits, trust_env=False)

    async def ask(asked: Questions) -> float:
        body = {"model": model, "input": asked.state, "questions": asked.questions}
        began = time.perf_counter()
        answer = (await client.post("/v1/decisions", json=body)).raise_for_status()
        assert len(answer.json()["answers"]) == len(asked.questions)
        return time.perf_counter() - began

    seconds: dict[int, list[list[float]]] = {}
    async with client:
        for count in options.at_once:
            rounds = []
            for number in range(options.rounds + 1):
                states = [f"{options.seed} {count} {number} {index}" for index in range(count)]
                asked = [Questions(options.state, options.questions, state) for state in states]
                rounds.append(list(await asyncio.gather(*map(ask, asked))))
            seconds[count] = rounds[1:]
    return seconds


def served_table(options: argparse.Namespace, seconds: dict[int, list[list[float]]]) -> Table:
    table = Table(title=f"{options.base_url}: {options.questions} questions about each state")
    for column in ("states at once", "questions/s", "median s of a request", "slowest s"):
        table.add_column(column, justify="right")
    for count, rounds in seconds.items():
        rate = count * options.questions / statistics.median(map(max, rounds))
        each = [value for one in rounds for value in one]
        table.add_row(str(count), *(f"{v:.2f}" for v in (rate, statistics.median(each), max(each))))
    return table


def counts(text: str) -> list[int]:
    """Numbers as in "1,4". Raises ValueError."""
    return [int(part) for part in text.split(",")]


def make_parser() -> argparse.ArgumentParser:
    parser = command("decisions", __doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--tokenizer", metavar="MODEL", help="take tokenizer and chat template from there (default: --model)"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--load-format", default="auto", help="dummy: random weights")
    parser.add_argument("--max-model-len", type=int, metavar="TOKENS")
    parser.add_argument("--kv-pool-tokens", type=int, metavar="TOKENS", help="default: by memory")
    parser.add_argument("--base-url", metavar="URL", help="measure this service instead; without /v1")
    parser.add_argument(
        "--at-once", type=counts, default=[1], metavar="N,...", help="requests to it together"
    )
    parser.add_argument("--seed", default="0", help="of the states that a service gets: another for each run")
    parser.add_argument("--state", type=int, default=10_000, metavar="TOKENS")
    parser.add_argument("--questions", type=int, default=50, metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="after one that is not counted")
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    return parser


def main() -> None:
    options = make_parser().parse_args()
    if options.base_url:
        in_a_service(options)
    else:
        in_this_process(options)


def in_a_service(options: argparse.Namespace) -> None:
    seconds = asyncio.run(served(options))
    report(options, served_table(options, seconds), seconds)


def in_this_process(options: argparse.Namespace) -> None:
    names = ("device", "load_format", "max_model_len", "kv_pool_tokens")
    settings = {name: value for name in names if (value := getattr(options, name)) is not None}
    with (
        TemporaryDirectory() as scratch,
        LLM(with_tokenizer(options.model, options.tokenizer, Path(scratch)), **settings) as llm,
    ):
        one = Questions(options.state, 1, "length")
        [answer] = llm.chat(one.conversation(one.questions[0]), _ONE_TOKEN, progress=False)
        seconds = measure(llm, options)
    what = f"{options.questions} questions, prompts of {len(answer.prompt_token_ids)} tokens"
    table = Table(title=f"{options.model} on {describe_machine()}: {what}")
    for column in ("", "questions/s", "median s", "fastest s", "slowest s", "median CPU s"):
        table.add_column(column, justify="right")
    for way, each in seconds.items():
        wall, cpu = zip(*each, strict=True)
        median = statistics.median(wall)
        row = (options.questions / median, median, min(wall), max(wall), statistics.median(cpu))
        table.add_row(way, *(f"{value:.2f}" for value in row))
    report(options, table, seconds)


def report(options: argparse.Namespace, table: Table, seconds: object) -> None:
    Console(width=110).print(table)
    if options.output:
        save_json(options.output, {"options": {k: str(v) for k, v in vars(options).items()}, "s": seconds})


if __name__ == "__main__":
    main()
