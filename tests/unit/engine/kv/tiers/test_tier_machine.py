"""Hypothesis drives a full pool with tiers: what comes up is what went down, or it is computed again.

The model has windows or a recurrent state, or neither.

Prompts repeat, so that most of them continue on a tier; the pool holds one or two of them. The reference's
tokens depend on all KV that a request reads.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from common.block_key import root_key
from common.kv_groups import ONE_GROUP, KVGroup, group_layers
from engine.core.request import Request
from engine.kv.tiers.limits import TierLimits
from engine.kv.tiers.stats import Tier
from engine.kv.tiers.tiers import KVTiers
from tests.unit.engine.engines import make_engine, make_request
from tests.unit.engine.fake_runner import reference
from tests.unit.engine.kv.tiers.fake_copier import FakeCopier

GROUPS = [ONE_GROUP, *(group_layers(windows, 64) for windows in ([None, 4], [5], [2, None, 9]))]
PREFIXES = [[seed] * 9 + [1] * 9 for seed in range(4)]


class TierMachine(RuleBasedStateMachine):
    @initialize(
        overlap=st.booleans(),
        slots=st.integers(2, 30),
        files=st.sampled_from([0, 4, 100]),
        below=st.sampled_from([Tier.DISK, Tier.OBJECT]),
        batch=st.integers(1, 4),
        pages=st.integers(9, 14),
        groups=st.sampled_from(GROUPS),
        states=st.sampled_from([0, 2, 4]),
    )
    def start(
        self,
        overlap: bool,
        slots: int,
        files: int,
        below: Tier,
        batch: int,
        pages: int,
        groups: tuple[KVGroup, ...],
        states: int,
    ) -> None:
        self.now = 0.0
        slots *= len(groups)
        pages *= len(groups)
        self.engine = make_engine(
            groups=groups,
            page_size=3,
            num_pages=pages,
            overlap=overlap,
            max_running_requests=3,
            chunk_budget=9,
            num_state_slots=states if groups == ONE_GROUP else 0,
        )
        self.engine._clock = lambda: self.now
        runner: Any = self.engine.runner
        limits = TierLimits(
            host_slots=slots,
            disk_files=files,
            below=below,
            batch=batch,
            loads=batch,
            disk_pause_s=0.0,
        )
        self.copier = FakeCopier(runner.memory, slots)
        self.tiers = KVTiers(limits, groups=groups)
        self.engine.kv.use_tiers(self.tiers, self.copier, lambda: root_key("model"), runner.pages_of_slot)
        self.reported: dict[int, bool] = {}
        """Blocks, and whether the pool lacks them."""
        self.next_id = 0
        self.live: dict[int, Request] = {}

    prompts = st.tuples(st.sampled_from(PREFIXES), st.lists(st.integers(0, 1), min_size=1, max_size=4))

    @rule(
        prompts=st.lists(prompts, min_size=1, max_size=3), steps=st.integers(0, 8), copies=st.integers(0, 4)
    )
    def ask(self, prompts: list[tuple[list[int], list[int]]], steps: int, copies: int) -> None:
        for prefix, rest in prompts:
            self.next_id += 1
            request = make_request(self.next_id, prefix + rest, 3)
            self.engine.submit(request)
            self.live[request.id] = request
        self.run(steps, copies, copies)

    @rule(steps=st.integers(1, 20), device=st.integers(0, 4), disk=st.integers(0, 4))
    def run(self, steps: int, device: int, disk: int) -> None:
        for _ in range(steps):
            self.copier.work(disk=False, most=device)
            self.copier.work(disk=True, most=disk)
            self.step()

    def step(self) -> None:
        output = self.engine.step(block=False)
        self.engine.check_pages()
        in_use = self.tiers.host.slots_in_use()
        assert len(set(in_use)) == len(in_use) <= self.tiers.host.num_slots
        assert len(self.tiers.disk) <= self.tiers.disk.num_slots
        for change in self.engine.kv.take_changes():
            for block in change.blocks:
                self.reported.pop(block, None)
                if change.stored:
                    self.reported[block] = change.below
        whole = {block: change.below for change in self.engine.kv.contents() for block in change.blocks}
        assert self.reported == whole
        in_pool = {block for block, is_below in whole.items() if not is_below}
        assert in_pool == set(self.engine.kv.cache.blocks())
        assert not output.failed
        for out in output.tokens:
            if out.finish is not None:
                request = self.live.pop(out.request.id)
                assert request.output == reference(request.prompt, request.sampling.max_tokens)

    @rule(
        kind=st.sampled_from(["host", "files", "deleted", "full", "room", "slow", "late", "answers"]),
        bit=st.integers(0, 30),
    )
    def fault(self, kind: str, bit: int) -> None:
        copier = self.copier
        match kind:
            case "host":
                for page in copier.slots.values():
                    page[-1] ^= 1 << bit
            case "files":
                for _, content in copier.files.values():
                    content[0] ^= 1 << bit
            case "deleted":
                copier.files.clear()
            case "slow":
                self.now += 1.0
            case "late" | "answers":
                copier.late = kind == "late"
            case _:
                copier.disk_full = kind == "full"

    @rule(index=st.integers(0, 100))
    def find(self, index: int) -> None:
        """Another worker may have written a file, or this one before it lost track of it."""
        if self.tiers.disk.num_slots and self.copier.files:
            files = sorted(self.copier.files)
            self.copier.find(files[index % len(files)])

    @rule(tier=st.sampled_from([None, *Tier]), share=st.integers(1, 3))
    def clear(self, tier: Tier | None, share: int) -> None:
        """All blocks of a place, or some."""
        some = None if share == 1 else {block for block in self.reported if block % share}
        if tier is None:
            self.engine.kv.clear(some)
        else:
            self.tiers.clear(tier, some)
        self.engine.check_pages()

    @rule(data=st.data(), abort=st.booleans())
    def interrupt(self, data: st.DataObject, abort: bool) -> None:
        running = [r for r in self.engine.scheduler.running if self.engine._in_flight.launched is None]
        if abort and self.live:
            request = self.live.pop(data.draw(st.sampled_from(sorted(self.live))))
            assert self.engine.abort(request.id)
        elif running:
            self.engine.scheduler.preempt(data.draw(st.sampled_from(running)))

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(500):
            if not self.engine.has_work:
                break
            self.run(1, 10, 10)
        assert not self.live, "a request was forgotten"
        self.copier.disk_full = self.copier.late = False
        for _ in range(200):
            self.run(1, 10, 10)
        assert not self.tiers._jobs
        assert not self.tiers.num_returning
        counts = self.engine.check_pages()
        assert counts.free + counts.cached == counts.total
        if self.engine.kv.states.used:
            slots = self.engine.kv.states.pool.counts()
            assert slots.free + slots.cached == slots.total


TestTierMachine = TierMachine.TestCase
TestTierMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_conversations_do_not_evict_for_ever_what_has_come_up_for_each_other() -> None:
    """Each has room beside the other's KV only without the cached prefix that it would begin with."""
    first, second = [0] * 9 + [1] * 9, [1] * 18
    machine = TierMachine()
    machine.start(
        overlap=True, states=0, slots=23, batch=2, below=Tier.OBJECT, pages=10, groups=ONE_GROUP, files=0
    )
    machine.ask(prompts=[(first, [0, 1]), (first, [0])], steps=2, copies=3)
    machine.ask(prompts=[(second, [1, 0, 1, 0])], steps=1, copies=3)
    machine.run(steps=4, device=0, disk=4)
    machine.run(steps=10, device=1, disk=1)
    machine.ask(prompts=[(first, [0]), (second, [0]), (second, [0, 0, 0, 1])], steps=0, copies=0)
    machine.teardown()
