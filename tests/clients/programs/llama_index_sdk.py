"""llama-index: complete, chat, streams, structured output, tools.

Arguments: base URL, "real" or "scripted", name of the model.
"""

import sys
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

URL, REAL, MODEL = sys.argv[1], sys.argv[2] == "real", sys.argv[3]
WHERE = {"model": MODEL, "api_base": f"{URL}/v1", "api_key": "-", "max_retries": 0, "max_tokens": 60}
ASK = [ChatMessage(role="user", content="Bern or Basel?")]


def weather(city: Literal["Bern", "Basel"]) -> str:
    """Forecast for a city."""
    return f"{city}: sunny"


plain = OpenAILike(**WHERE, is_chat_model=False)
assert plain.complete("Hello").text
assert "".join(piece.delta for piece in plain.stream_complete("Hello"))
llm = OpenAILike(**WHERE, is_chat_model=True, is_function_calling_model=True)
assert llm.chat(ASK).message.content
assert "".join(piece.delta or "" for piece in llm.stream_chat(ASK))
tool = FunctionTool.from_defaults(weather)
answer = llm.chat_with_tools([tool], "Weather in Bern?", tool_required=True)
[call] = llm.get_tool_calls_from_response(answer)
assert call.tool_kwargs["city"] in ("Bern", "Basel"), answer
if not REAL:
    *_, last = llm.stream_chat_with_tools([tool], "Weather in Bern?")
    [call] = llm.get_tool_calls_from_response(last)
    assert call.tool_kwargs == {"city": "Bern"}, last
