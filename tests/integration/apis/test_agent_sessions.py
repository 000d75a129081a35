"""A session of a coding agent through templates with the rules of Qwen3.5's, GLM's, Kimi's and DeepSeek's.

The model is scripted, in the template's format; where a call is forced, the grammar must allow the script.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from llguidance import LLMatcher, LLTokenizer

from engine.grammar.grammar import Grammar, GrammarKind
from engine.grammar.source import LIMITS, source_of
from engine.modeling.loader.checkpoint import resolve
from router.api.generation.output.formats import OutputFormats, ReasoningFormat, ToolFormat
from tests.integration.apis.agent_session import ASK, EDIT, STEPS, TODOS, TOOLS, anthropic_body, openai_body
from tests.integration.apis.tool_answers import answer_with
from tests.integration.frontends import Frontends, open_frontends

FOLDER = Path(__file__).parent / "templates"
_TODOS = json.dumps(TODOS["todos"], ensure_ascii=False)


class Family(NamedTuple):
    formats: OutputFormats
    earlier: str
    """A call of the session as the template renders it."""
    answer: str
    """The next call as the model writes it."""
    tool: str = '"name": "{}"'
    """How the prompt names a tool."""


FAMILIES = {
    "qwen": Family(
        OutputFormats(ToolFormat.QWEN3_CODER, ReasoningFormat.THINK),
        f"<function=edit>\n<parameter=file_path>\n{EDIT['file_path']}\n</parameter>\n<parameter=old_string>\n",
        "The list.\n</think>\n\n<tool_call>\n<function=todo_write>\n<parameter=todos>\n"
        f"{_TODOS}\n</parameter>\n</function>\n</tool_call>",
    ),
    "glm": Family(
        OutputFormats(ToolFormat.GLM, ReasoningFormat.THINK),
        f"<tool_call>edit\n<arg_key>file_path</arg_key>\n<arg_value>{EDIT['file_path']}</arg_value>\n",
        "<think>The list.</think>\n<tool_call>todo_write\n<arg_key>todos</arg_key>\n"
        f"<arg_value>{_TODOS}</arg_value>\n</tool_call>",
    ),
    "kimi": Family(
        OutputFormats(ToolFormat.KIMI_K2),
        '<|tool_call_begin|>functions.edit:2<|tool_call_argument_begin|>{"file_path": ',
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.todo_write:4<|tool_call_argument_begin|>"
        f"{json.dumps(TODOS, ensure_ascii=False)}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "deepseek": Family(
        OutputFormats(ToolFormat.DEEPSEEK_V31, ReasoningFormat.THINK),
        '<｜tool▁call▁begin｜>edit<｜tool▁sep｜>{"file_path": ',
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>todo_write<｜tool▁sep｜>"
        f"{json.dumps(TODOS, ensure_ascii=False)}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        tool="### {}\n",
    ),
}


@asynccontextmanager
async def serving(family: str) -> AsyncIterator[tuple[Frontends, httpx.AsyncClient]]:
    template = str(FOLDER / f"{family}.jinja")
    async with (
        open_frontends(resolve("smollm2").path, max_model_len=8192, template=template) as frontends,
        httpx.AsyncClient(base_url=frontends.url, timeout=30) as http,
    ):
        answer_with(frontends, FAMILIES[family].answer)
        yield frontends, http


def events_of(answer: httpx.Response) -> Iterator[Any]:
    assert answer.status_code == 200, answer.text
    lines = (line[6:] for line in answer.text.splitlines() if line.startswith("data: {"))
    return map(json.loads, lines)


def check_prompt(frontends: Frontends, family: str, steps: int = len(STEPS)) -> None:
    """The prompt of the last request has the tools, and calls and results of the first `steps` in order."""
    prompt = frontends.generation.tokenizer.decode(frontends.dispatcher.calls[-1].prompt)
    assert "interactive CLI agent" in prompt
    assert ASK in prompt
    assert all(FAMILIES[family].tool.format(name) in prompt for name in TOOLS)
    assert (FAMILIES[family].earlier in prompt) == (steps > 1)
    results = [[result.strip() for _, _, result in calls] for _, calls in STEPS]
    places = [prompt.index(result) for of_step in results[:steps] for result in of_step]
    assert places == sorted(places)
    assert not any(result in prompt for of_step in results[steps:] for result in of_step)


def called(events: Iterable[Any]) -> list[str]:
    """Names of the calls in a stream of OpenAI's."""
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    return [call["function"]["name"] for call in calls if call["function"].get("name")]


@pytest.mark.parametrize("family", FAMILIES)
async def test_every_request_of_a_session_has_the_tools_and_the_steps_before_it(family: str) -> None:
    async with serving(family) as (frontends, http):
        for steps in range(len(STEPS) + 1):
            answer = await http.post("/v1/chat/completions", json=openai_body(steps))
            assert called(events_of(answer)) == ["todo_write"]
            check_prompt(frontends, family, steps)


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_session_over_openais_api_goes_on_with_a_call(family: str) -> None:
    async with serving(family) as (frontends, http):
        assert frontends.generation.formats == FAMILIES[family].formats
        events = list(events_of(await http.post("/v1/chat/completions", json=openai_body())))
        check_prompt(frontends, family)
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    assert called(events) == ["todo_write"]
    assert json.loads("".join(call["function"].get("arguments") or "" for call in calls)) == TODOS
    assert "".join(delta.get("content") or "" for delta in deltas) == ""
    reasoning = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    assert reasoning == ("The list." if family in ("qwen", "glm") else "")


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_session_over_anthropics_api_goes_on_with_a_call(family: str) -> None:
    async with serving(family) as (frontends, http):
        events = list(events_of(await http.post("/v1/messages", json=anthropic_body())))
        check_prompt(frontends, family)
    blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [block["name"] for block in blocks if block["type"] == "tool_use"] == ["todo_write"]
    pieces = [event["delta"].get("partial_json", "") for event in events if "delta" in event]
    assert json.loads("".join(pieces)) == TODOS
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_call_that_the_agent_forces_is_one_in_the_models_own_format(family: str) -> None:
    async with serving(family) as (frontends, http):
        answer = await http.post("/v1/chat/completions", json=openai_body() | {"tool_choice": "required"})
        names = called(events_of(answer))
        text = frontends.dispatcher.calls[0].sampling.grammar.text
    assert names == ["todo_write"]
    matcher = LLMatcher(
        LLTokenizer("byte"), source_of(Grammar(GrammarKind.EBNF, text)), log_level=0, limits=LIMITS
    )
    assert matcher.consume_tokens(list(FAMILIES[family].answer.encode())), matcher.get_error()
    assert matcher.is_accepting()
