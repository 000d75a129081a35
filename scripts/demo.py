"""Serve a real model with a prefill and a decode worker, ask it something long, show where the time went.

Run by `make demo`. Everything is done as a user would: the `router` command, the official OpenAI client,
SIGTERM to stop.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI, OpenAIError
from openai.types.chat import ChatCompletionChunk
from rich.console import Console

from benchmarks.lib.servers.server import BatonServer, ServerFailed
from router.command.client.waterfall_chart import waterfall_chart

ROOT = Path(__file__).resolve().parent.parent
WORKERS = ("--mode", "disagg", "--model", "smollm2", "--prefill-workers", "1", "--decode-workers", "1")
# With one request at a time, one of the two workers has nothing to do: each may use the whole machine.
FLAGS = (*WORKERS, "--worker-cpus", str(os.cpu_count() or 1))
DOCUMENT = "LICENSE"
QUESTION = "What does this license allow me to do? Answer in a few sentences."
MAX_TOKENS = 100
POLL_S = 0.3


def main() -> None:
    console = Console(highlight=False)
    server = BatonServer(*FLAGS, "--log-level", "warning", shows_output=True)
    console.print(f"[bold]$ {server.command_line}")
    try:
        with server:
            ask(server.url, console)
            console.print("\nStopping (SIGTERM) …")
        console.print("Every process is gone.")
    except (ServerFailed, OpenAIError) as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit("demo: interrupted; the server was stopped")


def ask(url: str, console: Console, *, watches_workers: bool = True) -> None:
    """Stream one answer to the terminal, then draw where its time went.

    `watches_workers`: show how much of the prompt they have computed, from their metrics.
    """
    document = (ROOT / DOCUMENT).read_text()
    console.print(f"\n[bold]Question[/bold], after the text of {DOCUMENT}: {QUESTION}")
    console.print("\n[bold]Answer[/bold], by a model of 135M parameters")
    stream = OpenAI(base_url=f"{url}/v1", api_key="none").chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": f"{document}\n\n{QUESTION}"}],
        max_tokens=MAX_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"timings": True},
    )
    timings: dict[str, Any] = {}
    watched = reading(url, console) if watches_workers else nullcontext(lambda: None)
    with watched as end_of_reading:
        for chunk in stream:
            if text := text_of(chunk):
                end_of_reading()
                console.print(text, end="", markup=False, style="cyan")
            timings = (chunk.model_extra or {}).get("timings", timings)
            if chunk.usage:
                count = chunk.usage
    console.print(
        f"\n\n{count.prompt_tokens:,} prompt tokens, first token after {timings['ttft_s']:.2f} s; "
        f"{count.completion_tokens} output tokens in {timings['e2e_s'] - timings['ttft_s']:.2f} s\n"
    )
    console.print(waterfall_chart(timings))


@contextmanager
def reading(url: str, console: Console) -> Iterator[Callable[[], None]]:
    """A line that says how much of the prompt is computed, until what it yields is called."""
    before = tokens_computed(url)
    ended = threading.Event()
    status = console.status("reading the prompt …")

    def watch() -> None:
        while not ended.wait(POLL_S):
            try:
                count = tokens_computed(url) - before
            except httpx.HTTPError:
                return  # the answer's own stream reports what is wrong
            status.update(f"reading the prompt: {count:,} tokens computed")

    def end() -> None:
        ended.set()
        status.stop()

    watcher = threading.Thread(target=watch)
    with status:
        watcher.start()
        try:
            yield end
        finally:
            end()
            watcher.join()


def tokens_computed(url: str) -> int:
    """Prompt tokens that all workers have computed since they started, as Prometheus would read it."""
    (group,) = httpx.get(f"{url}/sd/workers").raise_for_status().json()
    pages = [httpx.get(f"http://{target}/metrics").raise_for_status().text for target in group["targets"]]
    counts = re.findall(r"^baton_computed_prompt_tokens_total\{.*\} (\S+)$", "\n".join(pages), re.MULTILINE)
    return int(sum(map(float, counts)))


def text_of(chunk: ChatCompletionChunk) -> str:
    return "".join(choice.delta.content or "" for choice in chunk.choices)


if __name__ == "__main__":
    main()
