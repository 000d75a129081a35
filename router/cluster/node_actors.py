"""One actor on each node of a running Ray cluster, for what has to be asked on the spot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from router.cluster.nodes import Node

__all__ = ["NodeActor", "NodeSilent", "actor_on", "joined"]

_ANSWER_S: Final = 120.0
"""The first answer comes when Ray has started a process there."""


class NodeSilent(Exception):
    """An actor does not answer; the message says why."""


@contextmanager
def joined(address: str) -> Iterator[None]:
    """This process as a driver of the cluster at `address`. Raises what `ray.init` raises."""
    ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


@dataclass(frozen=True, slots=True)
class NodeActor:
    node: Node
    handle: Any

    def ask(self, method: str, *arguments: Any, within_s: float = _ANSWER_S) -> Any:
        """What the method returns. Raises what it raises, and NodeSilent."""
        try:
            return ray.get(getattr(self.handle, method).remote(*arguments), timeout=within_s)
        except RayTaskError as error:
            raise error.cause from None
        except GetTimeoutError:
            raise NodeSilent(f"no answer within {within_s:g} s") from None
        except RayError as error:
            raise NodeSilent(str(error).strip().partition("\n")[0]) from None


def actor_on(
    node: Node, cls: Callable[..., object], *arguments: object, environment: dict[str, str]
) -> NodeActor:
    """Starts `cls(*arguments)` there; it takes no CPU and no GPU from workers. Returns at once."""
    actor = ray.remote(cls).options(
        num_cpus=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        runtime_env={"env_vars": environment},
    )
    return NodeActor(node, actor.remote(*arguments))
