"""Serve a real model with a prefill and a decode worker, ask it something long, show where the time went.

Run by `make demo`. Everything is done as a user would: the `router` command, the official OpenAI client,
SIGTERM to stop.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from openai import OpenAI, OpenAIError
from openai.types.chat import ChatCompletionChunk
from rich.console import Console

from benchmarks.lib.server import BatonServer, ServerFailed
from benchmarks.lib.waterfall_chart import waterfall_chart

ROOT = Path(__file__).resolve().parent.parent
WORKERS = ("--mode", "disagg", "--model", "smollm2", "--prefill-workers", "1", "--decode-workers", "1")
# With one request at a time, one of the two workers has nothing to do: each may use the whole machine.
FLAGS = (*WORKERS, "--worker-cpus", str(os.cpu_count() or 1))
DOCUMENTS = ("docs/architecture.md", "LICENSE")
QUESTION = "What does this license allow me to do? Answer in a few sentences."
MAX_TOKENS = 100


def main() -> None:
    console = Console(highlight=False)
    server = BatonServer(*FLAGS, "--log-level", "warning", shows_output=True)
    console.print(f"[bold]$ {server.command_line}")
    try:
        with server:
            ask(OpenAI(base_url=f"{server.url}/v1", api_key="none"), console)
            console.print("\nStopping (SIGTERM) …")
        console.print("Every process is gone.")
    except (ServerFailed, OpenAIError) as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit("demo: interrupted; the server was stopped")


def ask(client: OpenAI, console: Console) -> None:
    """Stream one answer to the terminal, then draw where its time went."""
    texts = [(ROOT / name).read_text() for name in DOCUMENTS]
    prompt = "\n\n".join([*texts, QUESTION])
    console.print(f"\n[bold]Question[/bold], after {' and '.join(DOCUMENTS)}: {QUESTION}")
    console.print("\n[bold]Answer[/bold], by a model of 135M parameters")
    stream = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": prompt}],
        max_tokens=MAX_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"timings": True},
    )
    timings: dict[str, Any] = {}
    with console.status("reading the prompt …") as waiting:
        for chunk in stream:
            if text := text_of(chunk):
                waiting.stop()
                console.print(text, end="", markup=False, style="cyan")
            timings = (chunk.model_extra or {}).get("timings", timings)
            if chunk.usage:
                count = chunk.usage
    console.print(
        f"\n\n{count.prompt_tokens:,} tokens read, first token after {timings['ttft_s']:.2f} s, "
        f"{count.completion_tokens} tokens written in {timings['e2e_s'] - timings['ttft_s']:.2f} s\n"
    )
    console.print(waterfall_chart(timings))


def text_of(chunk: ChatCompletionChunk) -> str:
    return "".join(choice.delta.content or "" for choice in chunk.choices)


if __name__ == "__main__":
    main()
