"""An engine with tiers, whose KV can be read and damaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common.block_key import root_key
from common.kv_groups import ONE_GROUP, KVGroup
from engine.core.request import Request
from engine.kv.tiers.limits import TierLimits
from engine.kv.tiers.stats import Tier
from engine.kv.tiers.tiers import KVTiers
from engine.loop.engine import Engine
from tests.unit.engine.engines import make_engine
from tests.unit.engine.fake_runner import reference
from tests.unit.engine.kv.tiers.fake_copier import FakeCopier


class Tiered:
    """An engine with tiers, and the copies between them."""

    def __init__(
        self,
        *,
        clock: Any = None,
        num_pages: int = 8,
        groups: tuple[KVGroup, ...] = ONE_GROUP,
        num_state_slots: int = 0,
        adapters: Sequence[str] = (),
        **limits: Any,
    ) -> None:
        sizes: dict[str, Any] = {"host_slots": 64} | limits
        self.tiers = KVTiers(TierLimits(**sizes), groups=groups)
        self.engine: Engine = make_engine(
            num_pages=num_pages,
            groups=groups,
            num_state_slots=num_state_slots,
            adapters=adapters,
            max_running_requests=4,
        )
        if clock is not None:
            self.engine._clock = clock
        runner: Any = self.engine.runner
        sidecars = self.engine.kv.sidecars
        self.copier = FakeCopier(runner.memory, sizes["host_slots"], sidecars=sidecars)
        self.engine.kv.use_tiers(
            self.tiers, self.copier, lambda: root_key(str(runner.weights)), runner.pages_of_slot
        )

    def promoted(self, request: Request) -> dict[Tier, int]:
        assert self.engine.kv.tiers is not None
        return self.engine.kv.tiers.use_of(request).promoted

    def copy_all(self) -> None:
        for _ in range(100):
            self.engine.poll_tiers()
            if not (self.copier.device_jobs or self.copier.disk_jobs or self.copier.dones):
                return
            self.copier.work(disk=False)
            self.copier.work(disk=True)
        raise AssertionError("copies do not end")

    def answer(self, request: Request) -> None:
        """Compute a request while all copies make progress; checks its tokens."""
        self.engine.submit(request)
        for _ in range(1000):
            if not self.engine.has_work:
                break
            self.engine.step()
            self.engine.check_pages()
            self.copier.work(disk=False)
            self.copier.work(disk=True)
        right = reference(request.prompt_keys, request.sampling.max_tokens, namespace=request.namespace)
        assert request.output == right
        self.copy_all()
