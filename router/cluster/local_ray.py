"""Starts a Ray on this machine, with the processes that Baton needs and no others.

By default, Ray spends some 3 CPU seconds more: on a server for its dashboard, even if there is none, an
autoscaler, a reader of log files, and a worker process for each CPU. `ray.init` has no parameters for them,
so this module uses internals of the Ray version that pyproject.toml pins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import ray
from ray._private import services
from ray._private.node import Node
from ray._private.resource_and_label_spec import ResourceAndLabelSpec

_LOOPBACK: Final = "127.0.0.1"
_OBJECT_STORE_BYTES: Final = 100 << 20
"""Ray's least would do: nothing but addresses goes through it."""


def start_local_ray(
    *, num_cpus: int, logging_level: int, log_to_driver: bool, namespace: str | None = None
) -> None:
    """`ray.init` on the loopback address. The calling thread must live as long as Ray.

    `log_to_driver`: print what workers log. Raises what Ray raises.
    """
    unneeded = ["start_monitor", "start_api_server"]
    if not log_to_driver:
        unneeded.append("start_log_monitor")  # it sends logs to the driver and does nothing else
    keep_token_private(Path.home() / ".ray" / "auth_token")
    with ExitStack() as stack:
        for name in unneeded:
            stack.enter_context(_replaced(Node, name, _start_nothing))
        stack.enter_context(_replaced(services, "ConsolePopen", _detached(services.ConsolePopen)))
        ray.init(
            address="local",
            num_cpus=num_cpus,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            logging_level=logging_level,
            log_to_driver=log_to_driver,
            namespace=namespace,
            _node_ip_address=_LOOPBACK,
            _system_config={"prestart_worker_first_driver": False},
        )


def keep_token_private(token: Path) -> None:
    """Ray generates its token with the umask, readable by every user; its holders can run code as this user.

    An empty file is no token for Ray, which then writes one into it.
    """
    token.parent.mkdir(parents=True, exist_ok=True)
    with suppress(PermissionError):  # another user's, who decides on it
        token.touch(mode=0o600)
        token.chmod(0o600)


def num_local_gpus() -> int:
    """The GPUs that a local Ray would have."""
    manager, count = ResourceAndLabelSpec._get_current_node_accelerator(None, {})
    return count if manager is not None and manager.get_resource_name() == "GPU" else 0


def _start_nothing(node: Node, **options: Any) -> None:
    pass


def _detached(popen: type) -> type:
    """`popen` with a process group of its own, so that Ray's processes do not get our signals.

    A SIGTERM to the whole group (timeout, supervisord, many CI runners) would end the workers while the
    router drains their requests.
    """

    class Detached(popen):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, process_group=0, **options)

    return Detached


@contextmanager
def _replaced(owner: Any, name: str, substitute: object) -> Iterator[None]:
    """Raises AttributeError if `owner` has no such attribute: another version of Ray."""
    original = getattr(owner, name)
    setattr(owner, name, substitute)
    try:
        yield
    finally:
        setattr(owner, name, original)
