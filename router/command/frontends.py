"""`--frontends N`: N routers behind the same ports, each a process, over the same workers.

The kernel gives each new connection to one of them (SO_REUSEPORT). They are routers like any others of a
cluster, and know each other only by what the workers report. This process starts them, and the Ray that they
join if there is no --ray-address; it carries no request.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import shlex
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Final

import ray
import yaml

from router.api.http.server import listen
from router.cluster.ray_cluster import end_workers
from router.cluster.ray_connection import RayConnection
from router.command.preflight import check_free
from router.command.shutdown import Interrupted, Shutdown, hangups_held
from router.config.flags.config_file import as_file
from router.config.flags.text_settings import environment_of
from router.config.settings import RouterConfig

_log = logging.getLogger(__name__)

END_WORKERS: Final = 10
"""Exit status of a front end that an operator has asked to end the workers too: only when all have ended."""
_AGAIN_S: Final = 1.0
_LOOPBACK_NETWORK: Final = "127.0.0.0/8"
_PR_SET_PDEATHSIG: Final = 1


async def run_frontends(configs: Sequence[RouterConfig]) -> int:
    """Run until all front ends have ended; returns the exit status of this process.

    One that was killed is started again; any other end of one, such as an error at its start, ends all.
    Raises PortTaken, ClusterError, PlanError.
    """
    shutdown = Shutdown()
    shutdown.install()
    async with AsyncExitStack() as stack:
        own_ray = configs[0].cluster.ray_address is None
        configs = _with_ports(configs, stack)
        try:
            if own_ray:
                configs = await shutdown.unless_requested(_with_ray(configs, stack))
                shutdown.install()
        except Interrupted:
            return 0
        front_ends = _FrontEnds(configs)
        shutdown.on_reload = front_ends.reload
        status = await front_ends.run(shutdown)
        if status == END_WORKERS:
            if not own_ray:
                await asyncio.to_thread(end_workers, configs)
            status = 0
        return status


def _with_ports(configs: Sequence[RouterConfig], stack: AsyncExitStack) -> list[RouterConfig]:
    """Hold the ports, which all front ends bind too, for as long as `stack` is open."""
    frontend, admin = configs[0].frontend, configs[0].effective_admin_port
    for flag, port in (("--http-port", frontend.http_port), ("--grpc-port", frontend.grpc_port)):
        check_free(flag, frontend.host, port)
    held = [listen(frontend.host, port, shared=True) for port in (frontend.http_port, frontend.grpc_port)]
    for holder in held:
        stack.callback(holder.close)
    http, grpc = (holder.getsockname()[1] for holder in held)
    return [
        replace(
            config,
            frontend=replace(config.frontend, http_port=http, grpc_port=grpc),
            operation=replace(config.operation, admin_port=admin),
        )
        for config in configs
    ]


async def _with_ray(configs: Sequence[RouterConfig], stack: AsyncExitStack) -> list[RouterConfig]:
    """Start a local Ray, which ends with `stack`; the front ends join it as they would any other."""
    connection = RayConnection(configs)
    for config in configs:
        connection.known_device(config)
    stack.push_async_callback(connection.close)
    await connection.join()
    os.environ["RAY_AUTH_MODE"] = "token"
    return [_joining(config, connection) for config in configs]


def _joining(config: RouterConfig, connection: RayConnection) -> RouterConfig:
    settings = config.cluster
    own = {"UCX_NET_DEVICES": os.environ.get("UCX_NET_DEVICES", "lo")} | environment_of(settings.worker_env)
    return replace(
        config,
        cluster=replace(
            settings,
            ray_address=ray.get_runtime_context().gcs_address,
            worker_cpus=connection.rank_cpus(config),
            worker_network=settings.worker_network or _LOOPBACK_NETWORK,
            worker_env=" ".join(f"{name}={shlex.quote(value)}" for name, value in own.items()),
        ),
    )


@dataclass
class _FrontEnds:
    configs: Sequence[RouterConfig]
    _running: set[Process] = field(default_factory=set)

    def reload(self) -> None:
        """Let each read its files again."""
        for process in self._running:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGHUP)

    async def run(self, shutdown: Shutdown) -> int:
        count = self.configs[0].frontend.frontends
        keeping = [asyncio.create_task(self._keep(index, shutdown)) for index in range(count)]
        await asyncio.wait(keeping, return_when=asyncio.FIRST_COMPLETED)
        shutdown.request(workers=False)  # the others end too
        statuses = await asyncio.gather(*keeping)
        errors = [status for status in statuses if status not in (0, END_WORKERS)]
        return errors[0] if errors else max(statuses)

    async def _keep(self, index: int, shutdown: Shutdown) -> int:
        """Run one front end until the shutdown, or until it ends by itself."""
        while True:
            process = await self._start(index)
            self._running.add(process)
            try:
                status = await shutdown.unless(process.wait())
                if status is None:
                    with suppress(ProcessLookupError):
                        process.terminate()
                    return await process.wait()
            finally:
                self._running.discard(process)
            if status >= 0:
                return status
            _log.error("front end %d was ended by signal %d, and is started again", index, -status)
            await asyncio.sleep(_AGAIN_S)

    async def _start(self, index: int) -> Process:
        """In a process group of its own: a Ctrl-C on the terminal reaches it once, through this process."""
        port = self.configs[0].operation.admin_port
        own = port + index if port else 0
        configs = [
            replace(config, operation=replace(config.operation, admin_port=own)) for config in self.configs
        ]
        command = [sys.executable, "-m", "router.command.main", "front-end", str(os.getpid())]
        with hangups_held():
            process = await asyncio.create_subprocess_exec(
                *command, "--config", "/dev/stdin", stdin=subprocess.PIPE, process_group=0
            )
        assert process.stdin is not None
        process.stdin.write(yaml.safe_dump(as_file(configs), sort_keys=False).encode())
        process.stdin.close()
        return process


def end_with_parent(parent: int) -> None:
    """For a front end: it drains when the process that started it, `parent`, has ended.

    Raises SystemExit if that was before: no signal tells of it then.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(f"router: the process {parent}, which started this front end, has ended")
    os.environ["TTY_COMPATIBLE"] = "0"  # progress bars of several processes would overwrite each other
