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
from router.cluster.ray_worker import first_line

__all__ = ["CannotJoin", "NodeActor", "NodeSilent", "actor_on", "joined"]

_ANSWER_S: Final = 120.0
"""The first answer comes when Ray has started a process there."""


class CannotJoin(Exception):
    """No Ray cluster can be joined; the message is Ray's reason."""


class NodeSilent(Exception):
    """An actor does not answer; the message says why."""


@contextmanager
def joined(address: str) -> Iterator[None]:
    """This process is a driver of the cluster at `address` meanwhile. Raises CannotJoin."""
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:  # Ray raises bare Exceptions too
        raise CannotJoin(first_line(error)) from error
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
            raise NodeSilent(first_line(error)) from None


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
