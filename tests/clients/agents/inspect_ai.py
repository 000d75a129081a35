"""inspect-ai: an evaluation of plain and streamed answers, and of a tool that is called.

Arguments: base URL, "real" or "scripted", name of the model.
"""

import os
import sys
import tempfile
from typing import Literal

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalSample
from inspect_ai.model import ChatMessageAssistant, ChatMessageTool, GenerateConfig
from inspect_ai.scorer import includes
from inspect_ai.solver import Solver, generate, use_tools
from inspect_ai.tool import Tool, ToolFunction, tool

URL, REAL, MODEL = sys.argv[1], sys.argv[2] == "real", sys.argv[3]
SERVICE = {"BATON_BASE_URL": f"{URL}/v1", "BATON_API_KEY": "-"}
"""Its option `base_url` of a model clashes with an argument that it passes itself."""


@tool
def weather() -> Tool:
    async def execute(city: Literal["Bern", "Basel"]) -> str:
        """Forecast for a city.

        Args:
            city: Its name.
        """
        return f"{city}: sunny"

    return execute


def run(*solvers: Solver, stream: bool = False) -> EvalSample:
    task = Task(
        dataset=[Sample("Weather in Bern?", target="Sunny.")], solver=list(solvers), scorer=includes()
    )
    config = GenerateConfig(max_tokens=60, temperature=0.0, max_retries=0)
    with tempfile.TemporaryDirectory() as logs:
        [log] = eval(
            task,
            model=f"openai-api/baton/{MODEL}",
            model_args={"stream": stream},
            display="none",
            log_dir=logs,
            **config.model_dump(exclude_none=True),
        )
        assert log.status == "success", log.error
        [sample] = log.samples
    assert REAL or sample.scores["includes"].value == "C", sample
    return sample


os.environ |= SERVICE
plain, streamed = run(generate()), run(generate(), stream=True)
assert plain.output.completion, plain
assert plain.output.usage.output_tokens > 0, plain
assert streamed.output.completion == plain.output.completion, (streamed, plain)
sample = run(use_tools(weather(), tool_choice=ToolFunction("weather")), generate())
_, call, result, *_ = sample.messages
assert isinstance(call, ChatMessageAssistant), call
assert call.tool_calls[0].arguments["city"] in ("Bern", "Basel"), call
assert isinstance(result, ChatMessageTool), result
assert result.text.endswith(": sunny"), result
