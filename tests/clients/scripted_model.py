"""A model that calls `weather` whenever it may, and any tool that it must; a schema gets JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from router.api.generation.text.tokenizer import Tokenizer
from router.dispatch.token_stream import Delta
from tests.integration.frontends import Call, say

_EOS = 2
_BERN = {"city": "Bern"}
_TOOL = re.compile(r'"(\w+)" ""')
"""Names of tools, as the grammar of a forced call has them."""


def weather_script(tokenizer: Tokenizer) -> Callable[[Call], list[Delta]]:
    def script(call: Call) -> list[Delta]:
        prompt = tokenizer.decode(call.prompt)
        grammar = call.sampling.grammar.text
        forced = "<tool_call>" in grammar
        if grammar and not forced:
            text = json.dumps(_BERN)
        elif forced or ("<tools>" in prompt and "<tool_response>" not in prompt):
            name = "weather" if not forced or '"weather"' in grammar else _TOOL.findall(grammar)[0]
            text = f"<tool_call>\n{json.dumps({'name': name, 'arguments': _BERN})}\n</tool_call>"
        else:
            text = "Sunny."
        return say(tokenizer, text, eos=_EOS)(call)

    return script
