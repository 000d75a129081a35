"""`router chat`: a conversation in the terminal, with the timeline of each answer."""

from __future__ import annotations

import argparse
import json
import readline
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from router.command.client.api import ApiClient, ApiError, Unreachable, add_api_arguments, api_of
from router.command.client.waterfall_chart import waterfall_chart

_PATH: Final = "/v1/chat/completions"
_MOST_TOKENS: Final = 1024
"""Longest answer: a small model may talk until the context is full."""
_HELP: Final = """\
/system TEXT      set the system prompt; without TEXT, remove it
/set NAME VALUE   set a parameter of the request, such as temperature or max_tokens; no VALUE unsets it
/params           show system prompt and parameters
/timeline         show or hide the timelines
/new              forget the conversation
/save FILE        write the conversation as JSON
/quit             exit (or ctrl-D); ctrl-C stops an answer"""


@dataclass(slots=True)
class Conversation:
    """The state from which the next request is made. Pure."""

    model: str
    system: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)

    def request(self, text: str) -> dict[str, Any]:
        """The body of a request for an answer to `text`."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {
            **self.parameters,
            "model": self.model,
            "messages": [*system, *self.messages, {"role": "user", "content": text}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "timings": True,
        }

    def answered(self, text: str, answer: str) -> None:
        self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]

    def set(self, name: str, value: str) -> None:
        """Set a parameter: `value` is JSON or plain text; empty removes the parameter."""
        if not value:
            self.parameters.pop(name, None)
            return
        try:
            self.parameters[name] = json.loads(value)
        except ValueError:
            self.parameters[name] = value

    def dump(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "system": self.system,
            "parameters": self.parameters,
            "messages": self.messages,
        }


def parameters_of(api: ApiClient) -> Collection[str]:
    """The fields of a chat request that the router knows. Raises ApiError, Unreachable."""
    document = api.get("/openapi.json")
    body = document["paths"][_PATH]["post"]["requestBody"]["content"]["application/json"]["schema"]
    if reference := body.get("$ref"):
        body = document["components"]["schemas"][reference.rpartition("/")[2]]
    fields: Collection[str] = body["properties"]
    return fields


class _Chat:
    def __init__(
        self, api: ApiClient, conversation: Conversation, console: Console, *, timeline: bool
    ) -> None:
        self._api = api
        self._conversation = conversation
        self._console = console
        self._timeline = timeline
        self._parameters: Collection[str] = ()

    def take(self, line: str) -> bool:
        """Process one line of input; False to leave."""
        word, _, rest = line.partition(" ")
        if not word.startswith("/"):
            if line:
                self._ask(line)
            return True
        rest = rest.strip()
        if word == "/quit":
            return False
        commands: dict[str, Callable[[str], None]] = {
            "/system": self._set_system,
            "/set": self._set_parameter,
            "/params": lambda _: self._show(),
            "/timeline": lambda _: self._toggle(),
            "/new": lambda _: self._conversation.messages.clear(),
            "/save": self._save,
        }
        command = commands.get(word)
        if command is None:
            self._console.print(_HELP, markup=False)
            return True
        try:
            command(rest)
        except (ApiError, Unreachable) as error:
            self._console.print(f"[red]{escape(str(error))}")
        return True

    def _ask(self, text: str) -> None:
        answer: list[str] = []
        timings: dict[str, Any] | None = None
        usage: dict[str, Any] | None = None
        try:
            for event in self._api.stream(_PATH, self._conversation.request(text)):
                for choice in event["choices"]:
                    piece = choice["delta"].get("content") or ""
                    answer.append(piece)
                    self._console.print(
                        piece, end="", markup=False, highlight=False, style="cyan", soft_wrap=True
                    )
                timings = event.get("timings") or timings
                usage = event.get("usage") or usage
        except KeyboardInterrupt:
            self._console.print("\n[bright_black]stopped")
        except (ApiError, Unreachable) as error:
            self._console.print(f"[red]{escape(str(error))}")
            return
        self._conversation.answered(text, "".join(answer))
        self._console.print()
        if timings is not None and usage is not None:
            self._console.print(_rate(timings, usage), style="bright_black", highlight=False)
            if self._timeline:
                self._console.print(waterfall_chart(timings))

    def _set_system(self, text: str) -> None:
        self._conversation.system = text

    def _set_parameter(self, text: str) -> None:
        name, value = _two(text)
        if not self._parameters:
            self._parameters = parameters_of(self._api)
        if value and name not in self._parameters:
            close = get_close_matches(name, self._parameters, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            self._console.print(f"[red]{escape(name)} is no parameter of a request{hint}")
            return
        self._conversation.set(name, value)

    def _show(self) -> None:
        self._console.print_json(
            data=self._conversation.dump() | {"messages": len(self._conversation.messages)}
        )

    def _toggle(self) -> None:
        self._timeline = not self._timeline

    def _save(self, path: str) -> None:
        try:
            Path(path).write_text(json.dumps(self._conversation.dump(), indent=2, ensure_ascii=False) + "\n")
        except OSError as error:
            self._console.print(f"[red]{escape(str(error))}")


def run(argv: Sequence[str]) -> int:
    """Exit status: 0 after a conversation, 1 if no router answers or it refuses."""
    arguments = make_parser().parse_args(argv)
    console = Console(highlight=False)
    try:
        api = api_of(arguments)
        model = arguments.model or api.get("/v1/models")["data"][0]["id"]
    except (ApiError, Unreachable, OSError, ValueError) as error:
        print(f"router chat: {error}", file=sys.stderr)
        return 1
    conversation = Conversation(model, arguments.system)
    for name in ("temperature", "max_tokens", "seed"):
        if (value := getattr(arguments, name)) is not None:
            conversation.parameters[name] = value
    chat = _Chat(api, conversation, console, timeline=not arguments.no_timeline)
    if sys.stdin.isatty():
        readline.set_auto_history(True)
        console.print(f"[bold]{escape(model)}[/bold] at {escape(api.url)}; /help lists the commands")
    for line in _lines():
        if not chat.take(line):
            break
    return 0


def _lines() -> Iterator[str]:
    """Lines of input: from the terminal with a prompt, or from a pipe without."""
    prompt = "\n> " if sys.stdin.isatty() else ""
    while True:
        try:
            yield input(prompt).strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            print()


def _two(text: str) -> tuple[str, str]:
    name, _, value = text.partition(" ")
    return name, value.strip()


def _rate(timings: dict[str, Any], usage: dict[str, Any]) -> str:
    tokens = usage["completion_tokens"]
    decode_s = timings["e2e_s"] - timings["ttft_s"]
    rate = f"{(tokens - 1) / decode_s:.1f} tokens/s, " if tokens > 1 and decode_s > 0 else ""
    return (
        f"{tokens} tokens, {rate}first token after {timings['ttft_s']:.2f} s; "
        f"prompt {usage['prompt_tokens']} tokens"
    )


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="router chat",
        description="Chat with a served model.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_api_arguments(parser)
    parser.add_argument("--model", metavar="NAME", help="model to chat with (default: the router's first)")
    parser.add_argument("--system", default="", metavar="TEXT", help="system prompt")
    parser.add_argument("--temperature", type=float, help="sampling temperature (default: the model's)")
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=_MOST_TOKENS,
        metavar="N",
        help="largest number of tokens of an answer (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same answer")
    parser.add_argument("--no-timeline", action="store_true", help="no timeline under the answers")
    return parser
