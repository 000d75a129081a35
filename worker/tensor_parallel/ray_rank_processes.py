"""The ranks of a worker other than 0 as Ray actors, in the placement-group bundle reserved for all its ranks.

A bundle lies on one node, so the ranks share a machine. Rank 0 creates the actors and thereby owns them: Ray
ends them when rank 0 ends. It creates them before it imports torch, which takes each process seconds; so this
module does not import it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from worker.config import WorkerConfig
from worker.tensor_parallel.rank_actor import RankActor
from worker.tensor_parallel.rank_processes import RankProcesses

if TYPE_CHECKING:
    from engine.parallel import Rendezvous


def rank_processes_of(config: WorkerConfig, bundle: int, log_level: int) -> RankProcesses | None:
    """None for a worker of one rank."""
    return _RayRankProcesses(config, bundle, log_level) if config.engine.tensor_parallel_size > 1 else None


class _RayRankProcesses(RankProcesses):
    def __init__(self, config: WorkerConfig, bundle: int, log_level: int) -> None:
        super().__init__()
        self._bundle = bundle
        self._arguments = config.environment, log_level, config.log_format
        self._actors: list[Any] = [self._actor() for _ in range(1, config.engine.tensor_parallel_size)]

    def start(self, config: WorkerConfig, rendezvous: Rendezvous) -> None:
        ends = {
            actor.run.remote(config, rendezvous, rank): rank
            for rank, actor in enumerate(self._actors, start=1)
        }
        threading.Thread(target=self._watch, args=(ends,), name="rank_processes", daemon=True).start()

    def end_all(self) -> None:
        for actor in self._actors:
            ray.kill(actor)

    def _actor(self) -> Any:
        """In the bundle of rank 0, with the same resources and environment."""
        mine: dict[str, float] = ray.get_runtime_context().get_assigned_resources()  # type: ignore[no-untyped-call]
        group = get_current_placement_group()
        assert group is not None, "the router places every worker in a bundle"
        place = PlacementGroupSchedulingStrategy(group, self._bundle)
        options = {"num_cpus": mine.get("CPU", 0), "num_gpus": mine.get("GPU", 0), "max_restarts": 0}
        actor = ray.remote(RankActor).options(**options, scheduling_strategy=place)
        return actor.remote(*self._arguments)

    def _watch(self, ends: dict[Any, int]) -> None:
        """Wait for the first rank to end; none should end before rank 0."""
        (ended,), _ = ray.wait(list(ends), num_returns=1)
        reason = "its loop ended"
        try:
            ray.get(ended)
        except RayError as error:
            reason = str(error).strip().rpartition("\n")[2]
        self.lost(f"rank {ends[ended]} ended: {reason}")
