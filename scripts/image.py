"""Build the container image, and serve with it: in one container, and with a second one as a worker machine.

Run by `make image`. Needs docker or podman, and the model of the demo in .venv. Environment variables:

    CONTAINER         the command: docker, podman, or such as "podman --runtime=runc"
    CONTAINER_FLAGS   further flags of its `build` and `run`, such as --ulimit=nofile=20000:20000
    BUILD_FLAGS       further flags of its `build`, such as --env=PIP_INDEX_URL=…
    BASE              the base image, or "debootstrap": Debian made from its packages, where no registry of
                      images can be reached (root)
    IMAGE             the name of the image (default: baton:cpu)
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
from rich.console import Console

from benchmarks.lib.servers.server import free_port
from engine.modeling.loader.checkpoint import resolve
from scripts.demo import ask

ROOT: Final = Path(__file__).resolve().parent.parent
_IMAGE: Final = os.environ.get("IMAGE", "baton:cpu")
_BASE: Final = "localhost/baton-base:bookworm"
_CERTIFICATES: Final = Path("/usr/local/share/ca-certificates")
_MODEL: Final = "/models/smollm2"
_MODEL_FLAGS: Final = ("--model", _MODEL, "--served-model-name", "smollm2", "--log-level", "warning")
_PORT: Final = 30000
_READY_S: Final = 300.0
_SHARED_MEMORY: Final = "1g"
"""For Ray, and for KV between workers of one machine."""
_RAY_TOKEN: Final = "RAY_AUTH_TOKEN"


class ImageFailed(Exception):
    """The message says which command failed, or what did not work."""


def main() -> None:
    console = Console(highlight=False)
    try:
        container = _container()
        build(container, console)
        with tempfile.TemporaryDirectory() as folder:
            model = _readable_copy(Path(folder))
            one_container(container, model, console)
            two_machines(container, model, console)
    except ImageFailed as error:
        sys.exit(f"image: {error}")


def build(container: list[str], console: Console) -> None:
    base = os.environ.get("BASE", "")
    if base == "debootstrap":
        base = _debootstrap(container, console)
    arguments = [f"--build-arg=BASE={base}"] if base else []
    flags = [*_flags("CONTAINER_FLAGS"), *_flags("BUILD_FLAGS")]
    if Path(container[0]).name == "podman":
        flags.append("--format=docker")  # the other one has no health check
    command = [*container, "build", *flags, "-f", "deploy/docker/Dockerfile", "-t", _IMAGE, *arguments, "."]
    _run(command, console)
    size = int(_output([*container, "image", "inspect", "--format", "{{.Size}}", _IMAGE]))
    console.print(f"\n{_IMAGE}: {size / 1e9:.2f} GB")


def one_container(container: list[str], model: Path, console: Console) -> None:
    """The demo: a prefill and a decode worker in one container."""
    console.print("\n[bold]One container: router, prefill worker, decode worker")
    workers = ("--mode", "disagg", "--prefill-workers", "1", "--decode-workers", "1", "--worker-cpus", "1")
    port = free_port()
    publish = f"--publish=127.0.0.1:{port}:{_PORT}"
    with _running(container, "router", [*_served(model), publish, _IMAGE, *_router(*workers)]) as name:
        _ask(container, name, port, console)
        _stop(container, name, console)


def two_machines(container: list[str], model: Path, console: Console) -> None:
    """A router without cores for workers, and a worker machine, each in a container with its own network."""
    console.print("\n[bold]Two containers: a router, and a worker machine that joins it")
    port, token = free_port(), secrets.token_hex(32)
    network = f"baton-{os.getpid()}"
    _output([*container, "network", "create", network])
    try:
        shared = [*_served(model), f"--network={network}", f"--env={_RAY_TOKEN}={token}", "--entrypoint=bash"]
        head = "ray start --head --port=6379 --num-cpus=0 --include-dashboard=false --disable-usage-stats"
        serve = shlex.join(["router", *_router("--ray-address", "auto", "--decode-workers", "1")])
        publish = f"--publish=127.0.0.1:{port}:{_PORT}"
        with _running(
            container, "router", [*shared, publish, _IMAGE, "-c", f"{head} && exec {serve}"]
        ) as router:
            address = _address(container, router)
            join = f"ray start --address={address}:6379 --num-cpus=2 --disable-usage-stats --block"
            command = f"until {join}; do sleep 1; done"
            with _running(container, "worker", [*shared, _IMAGE, "-c", command]) as worker:
                _ask(container, router, port, console)
                console.print(f"{worker} runs {_workers_of(container, worker)}")
                _stop(container, router, console)
    finally:
        _output([*container, "network", "rm", "--force", network])


def _container() -> list[str]:
    if named := os.environ.get("CONTAINER"):
        return shlex.split(named)
    for name in ("docker", "podman"):
        if shutil.which(name) and _succeeds([name, "info"]):
            return [name]
    raise ImageFailed("needs docker or podman: apt-get install podman, or name it with CONTAINER")


def _debootstrap(container: list[str], console: Console) -> str:
    """A base image of Debian's packages, with the certificates that this machine trusts."""
    if _succeeds([*container, "image", "inspect", _BASE]):
        return _BASE
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        raise ImageFailed("BASE=debootstrap needs root, and the Debian package debootstrap")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        include = "--include=ca-certificates"
        _run(["debootstrap", "--variant=minbase", include, "bookworm", str(root)], console)
        for certificate in _CERTIFICATES.glob("*.crt"):
            shutil.copy(certificate, root / _CERTIFICATES.relative_to("/"))
        _run(["chroot", str(root), "update-ca-certificates"], console)
        archive = Path(folder) / "root.tar"
        _run(["tar", "-C", str(root), "-cf", str(archive), "."], console)
        _run([*container, "import", str(archive), _BASE], console)
    return _BASE


def _readable_copy(folder: Path) -> Path:
    """The demo's model, where the image's user may read it."""
    copy = folder / "smollm2"
    shutil.copytree(resolve("smollm2").path, copy)
    folder.chmod(0o755)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return copy


def _served(model: Path) -> list[str]:
    return [f"--volume={model}:{_MODEL}:ro", f"--shm-size={_SHARED_MEMORY}"]


def _router(*flags: str) -> list[str]:
    """Flags of the router in a container, whose network is its own."""
    return [*_MODEL_FLAGS, "--host", "0.0.0.0", "--http-port", str(_PORT), *flags]


@contextmanager
def _running(container: list[str], role: str, arguments: list[str]) -> Iterator[str]:
    """A container in the background; yields its name."""
    name = f"baton-{role}-{os.getpid()}"
    _output([*container, "run", "--detach", f"--name={name}", *_flags("CONTAINER_FLAGS"), *arguments])
    try:
        yield name
    finally:
        _output([*container, "rm", "--force", name])


def _ask(container: list[str], name: str, port: int, console: Console) -> None:
    user = _output([*container, "exec", name, "id", "-u"]).strip()
    if user == "0":
        raise ImageFailed(f"{name} runs as root")
    began = time.monotonic()
    url = f"http://127.0.0.1:{port}"
    while not _answers(f"{url}/ready"):
        state = json.loads(_output([*container, "inspect", name]))[0]["State"]
        if not state["Running"] or time.monotonic() - began > _READY_S:
            raise ImageFailed(f"{name} is not ready:\n{_log(container, name)}")
        time.sleep(0.5)
    console.print(f"{name}: ready after {time.monotonic() - began:.1f} s, as user {user}")
    ask(url, console, watches_workers=False)  # whose metrics are in the containers' network


def _stop(container: list[str], name: str, console: Console) -> None:
    """SIGTERM, as Kubernetes sends it; the router must end by itself, with status 0."""
    began = time.monotonic()
    _output([*container, "stop", "--time=60", name])
    status = json.loads(_output([*container, "inspect", name]))[0]["State"]["ExitCode"]
    if status != 0:
        raise ImageFailed(f"{name} ended with status {status} after SIGTERM:\n{_log(container, name)}")
    console.print(f"{name}: ended {time.monotonic() - began:.1f} s after SIGTERM, with status 0")


def _workers_of(container: list[str], name: str) -> str:
    """Baton's workers in this container. Raises ImageFailed if there are none."""
    workers = [line for line in _output([*container, "top", name, "args"]).splitlines() if "Worker" in line]
    found = sorted(line.split("(")[0].strip() for line in workers if line.startswith("ray::"))
    if not found:
        raise ImageFailed(f"{name} runs no worker:\n{_output([*container, 'top', name, 'args'])}")
    return ", ".join(found)


def _address(container: list[str], name: str) -> str:
    networks = json.loads(_output([*container, "inspect", name]))[0]["NetworkSettings"]["Networks"]
    return str(next(iter(networks.values()))["IPAddress"])


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5.0, trust_env=False).is_success
    except httpx.TransportError:
        return False


def _log(container: list[str], name: str) -> str:
    done = subprocess.run([*container, "logs", name], check=False, capture_output=True, text=True)
    return "\n".join((done.stdout + done.stderr).splitlines()[-30:])


def _flags(variable: str) -> list[str]:
    return shlex.split(os.environ.get(variable, ""))


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _run(command: list[str], console: Console) -> None:
    """Shows its output. Raises ImageFailed."""
    console.print(f"[bold]$ {shlex.join(command)}", soft_wrap=True)
    if status := subprocess.run(command, check=False, cwd=ROOT).returncode:
        raise ImageFailed(f"`{shlex.join(command)}` ended with status {status}")


def _output(command: list[str]) -> str:
    """Raises ImageFailed."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ImageFailed(f"`{shlex.join(command)}` ended with status {done.returncode}:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
