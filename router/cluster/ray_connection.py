"""The Ray that this process started or joined; the workers of several models may live in it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import ray

from common.cpu_times import usable_cores
from common.error_text import first_line
from router.cluster.local_ray import num_local_gpus, start_local_ray
from router.cluster.nodes import Node, RayLost, nodes, until_enough, until_lost
from router.cluster.ray_thread import RayThread
from router.cluster.worker_config.machine import device_for
from router.config.choices import LogLevel
from router.config.settings import RouterConfig

_log = logging.getLogger(__name__)

_CONNECT_S: Final = 60.0
_SOON_S: Final = 1.0
"""After which it is said what the router waits for."""
_LOOK_S: Final = 1.0
"""Interval of attempts to connect to an address where nothing answers."""
_SILENT_S: Final = 10.0
"""Silence of Ray after which another router decides for the cluster."""
_NAMESPACE: Final = "baton"
"""Namespace of placement groups, whose names tell their owner; each model's workers have a namespace of their
own.
"""


class ClusterError(Exception):
    """Ray cannot be started or reached, or has no room; the message says what to do."""


class RayConnection:
    """A process has one, from `join` to `close`."""

    def __init__(self, configs: Sequence[RouterConfig]) -> None:
        """`configs`: of each model, at least one."""
        self._configs = configs
        self._settings = configs[0].cluster
        self.is_local: Final = self._settings.ray_address is None
        """Whether this process starts a Ray of one node, and ends it."""
        self.num_ranks: Final = sum(config.num_ranks for config in configs)
        """Ranks of the workers of all models."""
        self._thread = RayThread()
        self.asking: Final = RayThread()
        """For queries that Ray may not answer, so that nothing else waits behind them."""
        self._own_node = ""
        self._is_driver = True
        """Whether this process joined Ray here: an actor is in it already."""
        self._joins = False
        """Whether `join` was called."""
        self._is_lost = False
        self._unanswered_since: float | None = None
        """When the first question was asked that Ray has not answered yet."""

    def rank_cpus(self, config: RouterConfig) -> int:
        """Cores of a rank on this machine."""
        return config.cluster.worker_cpus or max(1, usable_cores() // self.num_ranks)

    def known_device(self, config: RouterConfig) -> str | None:
        """The device of a local Ray's workers; None if only Ray can tell. Raises ClusterError, PlanError."""
        if not self.is_local:
            return None
        gpus = num_local_gpus()
        self.check_room(gpus)
        return device_for(config.device, gpus)

    def check_room(self, gpus: int) -> None:
        """Raises ClusterError for a local Ray, which cannot grow; a cluster may."""
        needed = sum(
            config.num_ranks for config in self._configs if device_for(config.device, gpus) == "cuda"
        )
        if self.is_local and gpus < needed:
            raise ClusterError(
                f"{needed} ranks of workers need a GPU each and this machine has {gpus}; lower"
                " --tensor-parallel-size, --decode-workers or --prefill-workers, or join a larger cluster"
                " with --ray-address"
            )

    async def join(self, on_wait: Callable[[str], object] = _log.info) -> None:
        """Start or join Ray; takes about 4 s for a local Ray. `on_wait` is called with what it waits for.

        Raises ClusterError.
        """
        if (address := self._settings.ray_address) is None:
            await self._start_or_join()
            return
        patience = self._settings.startup_timeout
        saying = f"waiting for Ray at {address} (--startup-timeout {patience:g} s)"
        telling = asyncio.get_running_loop().call_later(_SOON_S, on_wait, saying)
        try:
            await self._until_listening(address, patience)
            await self._start_or_join()
        finally:
            telling.cancel()

    async def _start_or_join(self) -> None:
        self._joins = True
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._thread.call(self._init)
        except TimeoutError:
            raise ClusterError(self._cannot_connect(f"no answer within {_CONNECT_S:g} s")) from None
        except Exception as error:  # Ray also raises plain Exceptions
            raise ClusterError(self._cannot_connect(first_line(error))) from error

    async def _until_listening(self, address: str, patience: float) -> None:
        """Wait for a listener at HOST:PORT: Ray itself gives up after a time of its own, and says little."""
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal()):  # "auto": Ray finds the address itself
            return
        reason = ""
        try:
            async with asyncio.timeout(patience):
                while True:
                    try:
                        _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
                    except OSError as error:
                        number = error.errno or 0
                        reason = f" ({os.strerror(number) if number > 0 else error})"
                        await asyncio.sleep(_LOOK_S)
                    else:
                        writer.close()
                        return
        except TimeoutError:
            raise ClusterError(
                self._cannot_connect(f"nothing listens there within --startup-timeout {patience:g} s{reason}")
            ) from None

    def _init(self) -> None:
        operation = self._configs[0].operation
        common: dict[str, Any] = {
            "logging_level": logging.ERROR,
            "namespace": _NAMESPACE,
            "log_to_driver": operation.log_workers or operation.log_level is LogLevel.DEBUG,
        }
        if ray.is_initialized():
            self._is_driver = False
        elif self.is_local:
            cpus = sum(self.rank_cpus(config) * config.num_ranks for config in self._configs)
            start_local_ray(num_cpus=max(cpus, os.cpu_count() or 1), **common)
        else:
            ray.init(address=self._settings.ray_address, **common)
        self._own_node = ray.get_runtime_context().get_node_id()

    def _cannot_connect(self, reason: str) -> str:
        if self.is_local:
            return f"Ray could not be started on this machine: {reason}"
        return (
            f"no Ray cluster can be joined at --ray-address {self._settings.ray_address}: {reason}; start one"
            " (`ray start --head`, or `ray up deploy/cluster.yaml`) and give this process its token"
            " (RAY_AUTH_MODE=token and the same RAY_AUTH_TOKEN), or leave the flag out for a local Ray"
        )

    async def wait_for_nodes(self, on_wait: Callable[[str], None]) -> None:
        """Wait for the nodes of --wait-for-nodes; `on_wait` is called with those that miss.

        Raises ClusterError.
        """
        wanted, patience = self._settings.wait_for_nodes, self._settings.startup_timeout
        if wanted is None:
            return
        try:
            async with asyncio.timeout(patience):
                await until_enough(self.nodes, wanted, on_wait)
        except TimeoutError:
            raise ClusterError(
                f"within --startup-timeout {patience:g} s the cluster did not have the {wanted} nodes of"
                " --wait-for-nodes; `ray status` shows which are missing"
            ) from None

    async def nodes(self) -> list[Node]:
        """Raises what Ray raises if it cannot say."""
        if self._unanswered_since is None:
            self._unanswered_since = time.monotonic()
        known = await self.asking.call(nodes)
        self._unanswered_since = None
        return known

    @property
    def answers(self) -> bool:
        """Whether Ray lets this router act: it has not been lost, or silent for a while."""
        since = self._unanswered_since
        return not self._is_lost and (since is None or time.monotonic() - since < _SILENT_S)

    async def dead_nodes(self) -> set[str]:
        """Ids of the nodes that Ray has declared dead. Raises what Ray raises if it cannot say."""
        return {node.id for node in await self.nodes() if not node.alive}

    async def reaches(self, node_id: str) -> bool:
        """Whether Ray answers, and its health checks reach that node."""
        try:
            return any(node.alive and node.id == node_id for node in await self.nodes())
        except Exception as error:  # Ray's errors share no base class
            _log.debug("Ray cannot say which nodes it reaches: %s", error)
            return False

    async def lost(self, on_nodes: Callable[[Sequence[Node]], None] = lambda _: None) -> RayLost:
        """Wait until Ray has ended. `on_nodes` is called with the nodes every 2 s."""

        async def ask() -> list[Node]:
            known = await self.nodes()
            on_nodes(known)
            return known

        loss = await until_lost(ask, self._own_node)
        self._is_lost = True
        return loss

    @property
    def is_up(self) -> bool:
        """Whether this process is connected to a Ray that has not been lost."""
        return ray.is_initialized() and not self._is_lost

    async def close(self) -> None:
        """Leave Ray; if this process started it, end it. Safe to call at any point."""
        if not self._is_lost and self._is_driver and (self.is_up or (self.is_local and self._joins)):
            await self._thread.call(_end)  # after a start that is in progress


def _end() -> None:
    if ray.is_initialized():
        ray.shutdown()
