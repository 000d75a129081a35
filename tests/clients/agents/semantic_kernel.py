"""semantic-kernel: chats, streams, and functions that the kernel calls itself.

Arguments: base URL, "real" or "scripted", name of the model.
"""

import asyncio
import sys
from typing import Annotated

from openai import AsyncOpenAI
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai import FunctionChoiceBehavior as Choice
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.connectors.ai.open_ai import OpenAIChatPromptExecutionSettings as Settings
from semantic_kernel.contents import ChatHistory, FunctionCallContent, FunctionResultContent
from semantic_kernel.functions import kernel_function

URL, REAL, MODEL = sys.argv[1], sys.argv[2] == "real", sys.argv[3]
CLIENT = AsyncOpenAI(base_url=f"{URL}/v1", api_key="-", max_retries=0)
SERVICE = OpenAIChatCompletion(ai_model_id=MODEL, async_client=CLIENT)


class Station:
    @kernel_function(name="weather", description="Forecast for a city.")
    def weather(self, city: Annotated[str, "Its name."]) -> str:
        return f"{city}: sunny"


def ask() -> ChatHistory:
    history = ChatHistory()
    history.add_user_message("Weather in Bern?")
    return history


async def main() -> None:
    brief = Settings(max_tokens=60, temperature=0.0)
    answer = await SERVICE.get_chat_message_content(ask(), brief)
    assert answer.content, answer
    assert answer.metadata["usage"].completion_tokens > 0, answer
    pieces = [piece async for piece in SERVICE.get_streaming_chat_message_content(ask(), brief)]
    assert "".join(piece.content for piece in pieces if piece) == answer.content, pieces
    if REAL:  # a function's name starts with its plugin's, which the scripted model does not know
        kernel = Kernel()
        kernel.add_plugin(Station(), plugin_name="station")
        forced = Settings(
            max_tokens=60,
            temperature=0.0,
            function_choice_behavior=Choice.Required(),
            parallel_tool_calls=False,
        )
        history = ask()
        await SERVICE.get_chat_message_content(history, forced, kernel=kernel)
        _, call, result = history.messages
        assert isinstance(call.items[0], FunctionCallContent), call
        assert isinstance(result.items[0], FunctionResultContent), result
        assert result.items[0].result.endswith(": sunny"), result


asyncio.run(main())
