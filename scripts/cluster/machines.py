"""Simulated machines: each has its own network, mount, PID and UTS namespace, an overlay of / as its disk,
and sshd. One bridge connects them with each other and with nothing else. Needs root and some Debian packages.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from scripts.cluster import namespaces

USER: Final = "ubuntu"
HOME: Final = Path("/home") / USER
_TOOLS: Final = {
    "ip": "iproute2",
    "ss": "iproute2",
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "rsync": "rsync",
    "nsenter": "util-linux",
    "setsid": "util-linux",
    "make": "make",
}
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UP_S: Final = 30.0
_GONE_S: Final = 30.0

_BOOT: Final = r"""
set -e
hostname "$NAME"
mount --make-rprivate /
mount -t overlay -o "lowerdir=/,upperdir=$DISK/upper,workdir=$DISK/work" overlay "$DISK/root"
root=$DISK/root
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/tmp"; chmod 1777 "$root/tmp"
mount -t tmpfs tmpfs "$root/run"; mkdir -p "$root/run/sshd"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o size=1g shm "$root/dev/shm"; chmod 1777 "$root/dev/shm"
for path in $SHARED; do mkdir -p "$root$path"; mount --bind "$path" "$root$path"; done
cd "$root"; mkdir -p .old; pivot_root . .old; cd /; umount -l /.old
# The interpreter and shared folders may lie in a home that is closed to others.
for path in $OPEN; do chmod o+x "$path"; done
id -u ubuntu > /dev/null 2>&1 || useradd --create-home --uid 1500 --shell /bin/bash ubuntu
printf '127.0.0.1 localhost\n%s %s\n' "$ADDRESS" "$NAME" > /etc/hosts
: > /etc/resolv.conf
rm -f /etc/ssh/ssh_host_*; ssh-keygen -q -A
mkdir -p /home/ubuntu/.ssh; echo "$KEY" > /home/ubuntu/.ssh/authorized_keys
chown -R ubuntu: /home/ubuntu
exec env -i "PATH=$MACHINE_PATH" "$PYTHON" -c '
import os, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_DFL)
subprocess.Popen(["/usr/sbin/sshd", "-D", "-e"])
while True:
    try: os.wait()
    except ChildProcessError: time.sleep(0.5)'
"""
"""PID 1 of a machine: sets it up, starts sshd, and then reaps orphans."""


def why_not(*packages: str) -> str:
    """Why no such machine can be started here, and what to do; empty if it can.

    `packages`: further Debian packages, each with a command of its name.
    """
    if os.geteuid() != 0:
        return "machines in namespaces need root: run it with sudo"
    tools = _TOOLS | dict(zip(packages, packages, strict=True))
    missing = sorted({package for tool, package in tools.items() if _which(tool) is None})
    if missing:
        return f"machines in namespaces need Debian packages: apt-get install {' '.join(missing)}"
    return namespaces.why_not()


class Machine:
    """A running machine."""

    def __init__(self, name: str, address: str, namespace: str, pid: int) -> None:
        self.name = name
        self.address = address
        self.namespace = namespace
        self.pid = pid
        """Process id of its init, in the PID namespace of this process."""

    def command(self, *command: str, user: str = "root") -> list[str]:
        """The command line that runs `command` on it."""
        home = str(HOME) if user == USER else "/root"
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user != "root" else []
        enter = ["nsenter", "-t", str(self.pid), "-m", "-p", "-n", "-u", "-r"]
        environment = [f"HOME={home}", f"USER={user}", f"PATH={_PATH}", "TERM=dumb", "LANG=C.UTF-8"]
        return [*enter, *become, "env", "-i", *environment, *command]

    def run(
        self, script: str, *, user: str = "root", timeout_s: float = 60.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs a bash script on it. Raises CalledProcessError, with the output in its notes."""
        done = subprocess.run(
            self.command("bash", "-c", f"cd; {script}", user=user),
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
        )
        if check and done.returncode:
            failed = subprocess.CalledProcessError(done.returncode, script)
            failed.add_note(f"on {self.name}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
            raise failed
        return done

    def processes(self, *words: str) -> dict[int, str]:
        """Command lines that contain one of `words`, by their pid in the machine's PID namespace."""
        listing = self.run("ps -ww -e -o pid= -o args=").stdout.splitlines()
        lines = (line.split(None, 1) for line in listing)
        return {int(pid): args for pid, args in lines if any(word in args for word in words)}

    def bytes_sent(self) -> int:
        """Bytes that its network interface has sent."""
        return int(self.run("cat /sys/class/net/eth0/statistics/tx_bytes").stdout)


class Machines:
    """Context manager. On exit every process, namespace and mount of the machines is removed."""

    def __init__(self, addresses: Mapping[str, str], shared: Sequence[Path] = ()) -> None:
        """`addresses`: by name, all in one /24. `shared`: folders of this machine, mounted writable at the
        same path on each; on them the folders above are opened for every user."""
        self._addresses = addresses
        self._shared = shared
        self._tag = f"bt{os.getpid() % 100_000}"
        self._stack = ExitStack()
        self._machines: dict[str, Machine] = {}
        self.cut_off: list[Machine] = []
        """Machines whose link is cut."""
        self.key = ""
        """Path of the private key that every machine accepts."""

    def __getitem__(self, name: str) -> Machine:
        return self._machines[name]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._machines.values())

    def __enter__(self) -> Machines:
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cut(self, name: str) -> None:
        """Drops every packet to and from this machine from now on. No peer sees a reset."""
        namespaces.ip("-n", f"{self._tag}-sw", "link", "set", f"p-{name}", "down")
        self.cut_off.append(self[name])

    def mend(self, name: str) -> None:
        """Undoes `cut`."""
        namespaces.ip("-n", f"{self._tag}-sw", "link", "set", f"p-{name}", "up")
        self.cut_off.remove(self[name])

    def switch_off(self, name: str) -> None:
        """Cuts its link and kills all that `USER` runs there, as a loss of power does. Its disk stays."""
        self.cut(name)
        self[name].run("kill -9 -1", user=USER, check=False)

    def _start(self, stack: ExitStack) -> None:
        disk = Path(tempfile.mkdtemp(prefix="baton-machines-"))
        stack.callback(shutil.rmtree, disk, ignore_errors=True)
        _run("mount", "-t", "tmpfs", "-o", "size=6g", "baton-machines", str(disk))
        stack.callback(_run, "umount", "-l", str(disk))
        self.key = str(disk / "key")
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key)
        switch = f"{self._tag}-sw"
        namespaces.ip("netns", "add", switch)
        stack.callback(namespaces.ip, "netns", "del", switch)
        namespaces.ip("-n", switch, "link", "add", "br0", "type", "bridge")
        gateway = next(iter(self._addresses.values())).rpartition(".")[0] + ".1"
        namespaces.ip("-n", switch, "addr", "add", f"{gateway}/24", "dev", "br0")  # forwards nothing
        for device in ("br0", "lo"):
            namespaces.ip("-n", switch, "link", "set", device, "up")
        for name, address in self._addresses.items():
            self._plug_in(stack, switch, name, address, gateway)
            self._machines[name] = self._boot(stack, disk / name, name, address)
        for machine in self:
            self._wait_for_sshd(switch, machine)

    def _plug_in(self, stack: ExitStack, switch: str, name: str, address: str, gateway: str) -> None:
        space = f"{self._tag}-{name}"
        namespaces.ip("netns", "add", space)
        stack.callback(namespaces.ip, "netns", "del", space)
        namespaces.ip(
            "-n", switch, "link", "add", f"p-{name}", "type", "veth", "peer", "name", "eth0", "netns", space
        )
        namespaces.ip("-n", switch, "link", "set", f"p-{name}", "master", "br0", "up")
        namespaces.ip("-n", space, "link", "set", "lo", "up")
        namespaces.ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        namespaces.ip("-n", space, "link", "set", "eth0", "up")
        namespaces.ip("-n", space, "route", "add", "default", "via", gateway)

    def _boot(self, stack: ExitStack, disk: Path, name: str, address: str) -> Machine:
        for part in ("upper", "work", "root"):
            (disk / part).mkdir(parents=True)
        interpreter = Path(sys.executable).resolve()
        environment = {
            "PATH": _PATH,
            "NAME": f"baton-{name}",
            "ADDRESS": address,
            "DISK": str(disk),
            "SHARED": " ".join(map(str, self._shared)),
            "OPEN": " ".join(
                map(str, [parent for path in (interpreter, *self._shared) for parent in path.parents])
            ),
            "KEY": Path(f"{self.key}.pub").read_text(),
            "MACHINE_PATH": _PATH,
            "PYTHON": str(interpreter),
        }
        space = f"{self._tag}-{name}"
        unshare = ["unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child"]
        enter = ["setpriv", "--pdeathsig=KILL", "nsenter", f"--net=/run/netns/{space}"]
        with (disk / "boot.log").open("wb") as log:
            outer = subprocess.Popen(
                [*enter, *unshare, "setsid", "bash", "-c", _BOOT],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for this process, which then ends the machines in order
            )
        stack.callback(_end, outer)
        deadline = time.monotonic() + _UP_S
        while not (children := _children(outer.pid)):
            if outer.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((disk / "boot.log").read_text())
            time.sleep(0.02)
        return Machine(name, address, space, children[0])

    def _wait_for_sshd(self, switch: str, machine: Machine) -> None:
        script = f"exec 3<>/dev/tcp/{machine.address}/22"
        deadline = time.monotonic() + _UP_S
        while subprocess.run(
            ["ip", "netns", "exec", switch, "bash", "-c", script], check=False, capture_output=True
        ).returncode:
            if time.monotonic() > deadline:
                disk = Path(self.key).parent / machine.name
                raise RuntimeError(f"{machine.name}: no sshd\n{(disk / 'boot.log').read_text()}")
            time.sleep(0.1)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _end(outer: subprocess.Popen[bytes]) -> None:
    """Ends a PID namespace by its first process. `unshare` returns when every process of it is gone."""
    for pid in _children(outer.pid):
        os.kill(pid, signal.SIGKILL)
    try:
        outer.wait(_GONE_S)
    except subprocess.TimeoutExpired:
        outer.kill()
        outer.wait()


def _which(tool: str) -> str | None:
    return shutil.which(tool, path=f"{os.environ['PATH']}:{_PATH}")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(why_not(*sys.argv[1:]) or None)
