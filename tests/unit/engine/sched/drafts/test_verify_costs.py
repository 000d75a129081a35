"""Steps beside one with drafts: what they take too long is the drafts' cost."""

from __future__ import annotations

import pytest

from engine.sched.drafts.verify_costs import VerifyCosts, Verifying

DECODES, PLAIN_S = 8, 0.010


def of_step_with_drafts(before: float, during: float, behind: float) -> Verifying:
    """What is known of a step that lasts `during`, between two that do."""
    costs = VerifyCosts()
    for _ in range(10):
        costs.planned(drafts=False, asked=False)
        costs.observe(DECODES, 0, 0, PLAIN_S)
    costs.planned(drafts=True, asked=True)
    known = costs.observe(DECODES, 0, 0, before)
    costs.planned(drafts=False, asked=False)
    known += costs.observe(DECODES, 6, 3, during)
    known += costs.observe(DECODES, 0, 0, behind)
    assert costs.level(DECODES).seconds == pytest.approx(PLAIN_S)
    [verifying] = known
    return verifying


@pytest.mark.parametrize("which", [0, 1, 2])
def test_what_a_step_beside_drafts_takes_too_long_counts_as_their_cost(which: int) -> None:
    seconds = [PLAIN_S] * 3
    seconds[which] += 0.004

    assert of_step_with_drafts(*seconds).extra == pytest.approx(0.004)


def test_what_a_step_beside_drafts_takes_too_long_adds_up() -> None:
    assert of_step_with_drafts(0.011, 0.012, 0.0135).extra == pytest.approx(0.0065)
