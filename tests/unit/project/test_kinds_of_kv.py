"""The table of kinds of KV in docs/models.md: every refusal in it is one of the code, which refuses it."""

from __future__ import annotations

import re
from pathlib import Path

from router.config.flags.validation import problems_of
from router.config.settings import RouterConfig

PAGE = (Path(__file__).parents[3] / "docs" / "models.md").read_text()


def message(number: int) -> str:
    found = re.search(rf"^\| {number} \| `(.*)` \|$", PAGE, re.MULTILINE)
    assert found is not None
    return found[1]


def test_every_refusal_of_the_table_has_a_message() -> None:
    assert sorted(set(map(int, re.findall(r"refused \((\d+)\)", PAGE)))) == [1]


def test_tiers_are_refused_on_several_ranks() -> None:
    found = problems_of(RouterConfig(model="m", host_kv_gb=1.0, tensor_parallel_size=2))
    assert any(message(1) in problem for problem in found)
