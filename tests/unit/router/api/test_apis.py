"""An API is one record: nothing but the table of APIs names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import router
from router.api.anthropic.api import ANTHROPIC
from router.api.apis import APIS, api_of
from router.api.openai.api import OPENAI
from router.api.openai.responses_api.api import RESPONSES

ROOT = Path(router.__file__).parent


@pytest.mark.parametrize("folder", ["api/anthropic", "api/openai/responses_api"])
def test_an_api_is_imported_by_its_folder_and_the_table_alone(folder: str) -> None:
    name = re.compile(rf"^\s*(from|import) router\.{folder.replace('/', '.')}\b", re.MULTILINE)
    importers = {path for path in ROOT.rglob("*.py") if name.search(path.read_text())}
    assert {path for path in importers if ROOT / folder not in path.parents} == {ROOT / "api" / "apis.py"}


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v1/messages", ANTHROPIC),
        ("/v1/messages/count_tokens", ANTHROPIC),
        ("/v1/messages/none", ANTHROPIC),
        ("/v1/responses/none", RESPONSES),
        ("/v1/completions", OPENAI),
        ("/none", OPENAI),
        ("", OPENAI),
    ],
)
def test_a_path_belongs_to_the_api_with_the_longest_prefix_of_it(path: str, api: object) -> None:
    assert api_of(path) is api


def test_every_endpoint_belongs_to_the_api_that_lists_it() -> None:
    for api in APIS:
        for endpoint in api.endpoints:
            assert api_of(endpoint.path).error_body is api.error_body, endpoint.path
