"""Runs an actor on each node of a Ray cluster, for queries that must run there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from common.error_text import first_line
from router.cluster.nodes import Node

_ANSWER_S: Final = 120.0
"""The first answer takes as long as Ray needs to start a process there."""


class CannotJoin(Exception):
    """No Ray cluster can be joined; the message is Ray's reason."""


class NodeSilent(Exception):
    """An actor does not answer; the message says why."""


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Context in which this process is a driver of the cluster at `address`. Raises CannotJoin."""
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:  # Ray also raises plain Exceptions
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
        """Call a method of the actor. Raises what the method raises, and NodeSilent."""
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
    """Start `cls(*arguments)` on that node, without taking CPUs or GPUs from workers. Returns at once."""
    actor = ray.remote(cls).options(
        num_cpus=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        runtime_env={"env_vars": environment},
    )
    return NodeActor(node, actor.remote(*arguments))
