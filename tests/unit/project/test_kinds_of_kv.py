"""The table of kinds of KV in docs/models.md: every refusal in it is one of the code, which refuses it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from engine.model_config.delta_spec import DeltaSpec
from kv_transfer import KVLayout, Peer
from kv_transfer.errors import LayoutMismatch
from router.config.flags.validation import problems_of
from router.config.settings import RouterConfig
from tests.kv_workers import LAYOUT

PAGE = (Path(__file__).parents[3] / "docs" / "models.md").read_text()


def message(number: int) -> str:
    found = re.search(rf"^\| {number} \| `(.*)` \|$", PAGE, re.MULTILINE)
    assert found is not None
    return found[1]


def layout(ranks: int) -> KVLayout:
    delta = DeltaSpec(layers=(0,), key_heads=2, value_heads=2, key_dim=8, value_dim=8, kernel=4)
    return replace(LAYOUT, state_pages=1, state=delta.state_format(ranks))


def test_every_refusal_of_the_table_has_a_message() -> None:
    assert sorted(set(map(int, re.findall(r"refused \((\d+)\)", PAGE)))) == [1, 2]


def test_states_are_not_handed_to_another_number_of_ranks() -> None:
    peer = Peer("p~1", 1, b"", 0, LAYOUT.page_bytes, 1, 0, layout(1).hash)
    peer.require(layout(1))
    with pytest.raises(LayoutMismatch, match=re.escape(message(1))):
        peer.require(layout(2))


def test_tiers_are_refused_on_several_ranks() -> None:
    found = problems_of(RouterConfig(model="m", host_kv_gb=1.0, tensor_parallel_size=2))
    assert any(message(2) in problem for problem in found)
