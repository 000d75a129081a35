"""Log-probabilities of a prompt go wherever its KV goes: another scored prompt finds both there.

The machine checks the numbers, and this module that they were not computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.kv.cache.sidecars import NO_SIDECARS
from tests.unit.whole_cluster.questions import Question
from tests.unit.whole_cluster.test_cluster_machine import ClusterMachine
from tests.unit.whole_cluster.whole_worker import PAGE, Kind

PROMPT = [2, 1, 0, 1, 2, 2, 0, 1, 1, 0, 2, 1, 0, 0, 1, 2]
REUSED = len(PROMPT) - PAGE
"""The last block is computed again. From elsewhere comes one block less: that of the last token does not."""


@pytest.fixture
def machines() -> Iterator[list[ClusterMachine]]:
    opened: list[ClusterMachine] = []
    yield opened
    for machine in opened:
        machine.teardown()


def cluster(machines: list[ClusterMachine], kind: Kind = Kind()) -> ClusterMachine:  # noqa: B008
    machine = ClusterMachine()
    machines.append(machine)
    machine.start(24, 8, False, True, kind, {}, 0.0, [])
    return machine


def ask(machine: ClusterMachine, places: list[int], scored: int | None = 0, **more: Any) -> int:
    """A prompt on these workers; returns how many tokens the first one reuses."""
    fields = {"prompt": PROMPT, "length": 2, "pulled": 0} | more
    engine = machine.workers[places[0]].engine
    before = engine.stats().cache_hit_tokens
    question = Question(
        image=b"", salt="", places=places, priority=0, kept_s=0.0, answers=1, scored=scored, **fields
    )
    machine.clients_come([question], rounds=50)
    machine.every_client_has_a_prefix_of_the_right_answer()
    assert not machine.served()
    return engine.stats().cache_hit_tokens - before


def test_in_the_pool(machines: list[ClusterMachine]) -> None:
    machine = cluster(machines)
    assert [ask(machine, [0] * 4, scored) for scored in (1, 0, 1, 2, None)] == [0, REUSED, REUSED, 0, REUSED]


def test_on_the_worker_of_a_handoff(machines: list[ClusterMachine]) -> None:
    machine = cluster(machines)
    assert ask(machine, [0, 1, 0, 1]) == 0
    assert ask(machine, [1] * 4) == REUSED
    assert ask(machine, [0] * 4) == REUSED


def test_after_a_handoff_whose_messages_with_rows_are_lost(machines: list[ClusterMachine]) -> None:
    machine = cluster(machines)
    machine.workers[0].port.sidecars = NO_SIDECARS
    assert ask(machine, [0, 1, 0, 1]) == 0
    assert ask(machine, [1] * 4) == 0
    assert ask(machine, [1] * 4) == REUSED


def test_on_a_worker_that_pulls_them(machines: list[ClusterMachine]) -> None:
    machine = cluster(machines)
    assert ask(machine, [2] * 4) == 0
    assert ask(machine, [0, 0, 2, 2], pulled=4) == REUSED - PAGE


def test_on_the_worker_to_which_an_answer_has_moved(machines: list[ClusterMachine]) -> None:
    machine = cluster(machines)
    question = Question(PROMPT, b"", "", 40, [0] * 4, 0, 0, 0.0, 1, 1)
    machine.clients_come([question], rounds=3)
    machine.move(0, 1, 60)
    assert [move.result() for move in machine.moves] == [True]
    assert ask(machine, [1] * 4) == REUSED


@pytest.mark.parametrize("files", [0, 40])
def test_on_tiers(machines: list[ClusterMachine], files: int) -> None:
    machine = cluster(machines, Kind(host_slots=60, num_files=files))
    assert ask(machine, [0] * 4) == 0
    machine.go_on(5)
    for places in (["pool"], ["pool", "host"])[: 1 + bool(files)]:
        machine.clear(0, places, None)
        machine.go_on(2)
        assert machine.workers[0].engine.kv.cache.num_pages == 0
        assert ask(machine, [0] * 4) == REUSED - PAGE


def test_a_damaged_record_costs_its_page(machines: list[ClusterMachine]) -> None:
    machine = cluster(machines, Kind(host_slots=60))
    assert ask(machine, [0] * 4) == 0
    machine.go_on(5)
    machine.clear(0, ["pool"], None)
    machine.go_on(2)
    copier = machine.workers[0].copier
    assert copier is not None
    for slot, record in copier.records.items():
        copier.records[slot] = record[:-1] + bytes([record[-1] ^ 1]) if record else record
    assert ask(machine, [0] * 4) == 0


def test_pages_of_other_prompts_have_none(machines: list[ClusterMachine]) -> None:
    machine = cluster(machines)
    assert ask(machine, [0] * 4, None) == 0
    assert ask(machine, [0] * 4, 0) == 0
    assert ask(machine, [0] * 4, 0) == REUSED


def test_beside_windows_the_pages_of_full_attention_own_them(machines: list[ClusterMachine]) -> None:
    machine = cluster(machines, Kind(windows=(2, None)))
    assert ask(machine, [0] * 4) == 0
    assert ask(machine, [0] * 4) == REUSED


def test_with_recurrent_states_a_hit_ends_at_a_checkpoint(machines: list[ClusterMachine]) -> None:
    machine = cluster(machines, Kind(num_state_slots=8))
    longer = [*PROMPT, *PROMPT]
    assert ask(machine, [0] * 4) == 0
    assert ask(machine, [0] * 4, prompt=longer) == REUSED
