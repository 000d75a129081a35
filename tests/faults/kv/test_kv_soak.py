"""New faults every time, of tiers and of copies between workers.

Tiers and disks are full, files deleted, bits flipped; sources end while they send, and tickets come late.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.unit.engine.kv.tiers.test_tier_machine import TierMachine
from tests.unit.worker.test_pull_machine import PullMachine


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [TierMachine, PullMachine])
def test_no_fault_yields_a_wrong_token_in_2_000_rounds(machine: type[RuleBasedStateMachine]) -> None:
    new_every_time = settings(max_examples=2000, stateful_step_count=50, deadline=None, derandomize=False)
    run_state_machine_as_test(machine, settings=new_every_time)
