"""The APIs of the HTTP front end. A new one is a folder of its own, and a name here."""

from __future__ import annotations

from typing import Final

from router.api.adapters import ADAPTERS
from router.api.anthropic.api import ANTHROPIC
from router.api.decisions.api import DECISIONS
from router.api.embeddings.api import EMBEDDINGS
from router.api.endpoints.record import Api
from router.api.openai.api import OPENAI
from router.api.openai.responses_api.api import RESPONSES
from router.api.operations import OPERATIONS
from router.api.tokens.api import TOKENS
from router.api.weights.routes import WEIGHTS

APIS: Final = (OPENAI, RESPONSES, DECISIONS, EMBEDDINGS, ANTHROPIC, OPERATIONS, WEIGHTS, ADAPTERS, TOKENS)


def api_of(path: str) -> Api:
    """The API that `path` belongs to, also if it is not served: the one with the longest prefix of it."""
    return max((api for api in APIS if path.startswith(api.prefix)), key=lambda api: len(api.prefix))
