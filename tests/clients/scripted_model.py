"""A model that calls the tool `weather` whenever it may, and answers JSON whenever a schema asks for it."""

from __future__ import annotations

import json
from collections.abc import Callable

from router.api.generation.text.tokenizer import Tokenizer
from router.dispatch.token_stream import Delta
from tests.integration.frontends import Call, say

_EOS = 2
_BERN = {"city": "Bern"}


def weather_script(tokenizer: Tokenizer) -> Callable[[Call], list[Delta]]:
    def script(call: Call) -> list[Delta]:
        prompt = tokenizer.decode(call.prompt)
        grammar = call.sampling.grammar.text
        forced = "<tool_call>" in grammar
        if grammar and not forced:
            text = json.dumps(_BERN)
        elif forced or ("<tools>" in prompt and "<tool_response>" not in prompt):
            text = f"<tool_call>\n{json.dumps({'name': 'weather', 'arguments': _BERN})}\n</tool_call>"
        else:
            text = "Sunny."
        return say(tokenizer, text, eos=_EOS)(call)

    return script
