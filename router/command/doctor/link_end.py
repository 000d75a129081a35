"""One end of a link, in its own process, like a worker: `python -m router.command.doctor.link_end`.

Exchanges JSON, one object per line: prints its own peer data and reads the other end's; the writer then
prints its measurement. Both run until their standard input is closed, and then print their CPU time.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import ctypes
import json
import os
import re
import select
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

from common.kv_groups import full_group
from common.ports import PortRange
from kv_transfer import KVLayout, Peer, PoolMemory
from kv_transfer.planner import Copy
from kv_transfer.transports.base import WriteDone, WriteFailed
from kv_transfer.transports.nixl import NixlTransport

UNKNOWN: Final = "unknown"
_OPERATIONS: Final = "*memory write*"
_CELLS: Final = re.compile(r"\| (.*) \|$")
_SCOPE: Final = re.compile(r"(self|intra-node|inter-node) cfg#")
_WHOLE_PAGES: Final = re.compile(r"\d+\.\.inf")
"""The size range without an upper end."""


@dataclass(frozen=True, slots=True)
class _UcxLog:
    fd: int
    path: str


_ucx_log: _UcxLog | None = None


def keep_ucx_log() -> None:
    """Make UCX log its choice of transports, for which NIXL has no API. Call it before UCX is loaded.

    The log goes to a file of this process. If the user has configured UCX's log, that is left alone, and the
    transports stay unknown.
    """
    global _ucx_log
    if _ucx_log is None and not os.environ.keys() & {"UCX_PROTO_INFO", "UCX_LOG_FILE"}:
        _ucx_log = _UcxLog(*tempfile.mkstemp(prefix="baton-ucx-", suffix=".log"))
        os.environ["UCX_PROTO_INFO"] = _OPERATIONS
        os.environ["UCX_LOG_FILE"] = _ucx_log.path


def discard_ucx_log() -> None:
    """Delete the log file. A process that crashes leaves it, with UCX's last messages."""
    if _ucx_log is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_ucx_log.path)


def write_path() -> str:
    """The transport of this process's writes, such as "cuda_ipc/cuda (zero-copy)"."""
    if _ucx_log is None:
        return UNKNOWN
    ctypes.CDLL(None).fflush(None)  # UCX writes to a buffered C stream
    text = os.pread(_ucx_log.fd, os.fstat(_ucx_log.fd).st_size, 0).decode(errors="replace")
    paths = write_paths_in(text)
    if len(set(paths.values())) == 1:
        return next(iter(paths.values()))
    return ", ".join(f"{scope} {path}" for scope, path in sorted(paths.items())) or UNKNOWN


def write_paths_in(text: str) -> dict[str, str]:
    """Parse UCX's log: the latest choice for "intra-node" and "inter-node" peers, if there are any."""
    paths: dict[str, str] = {}
    scope, is_write = "", False
    for line in text.splitlines():
        if (cells := _CELLS.search(line)) is None:
            continue
        match [cell.strip() for cell in cells[1].split("|")]:
            case [title] if found := _SCOPE.search(title):
                scope, is_write = found[1], False
            case [title]:
                is_write = is_write or "memory write" in title
            case [size, way, lanes] if is_write and scope != "self" and _WHOLE_PAGES.fullmatch(size):
                paths[scope] = f"{lanes} ({way})"
    return paths


_BLOCK: Final = 64 << 20
_ROUNDS: Final = 5
_LAYOUT: Final = KVLayout("doctor", "float8_e4m3fn", full_group(1), 1, _BLOCK // 2, 1)
"""A page is one block."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("writer", "reader"))
    parser.add_argument("device", help="cpu or cuda:0")
    parser.add_argument("--host", default="127.0.0.1", help="this machine's address for the other end")
    parser.add_argument("--ports", type=PortRange.parse, help="ports to listen on, as of --worker-ports")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two polls")
    arguments = parser.parse_args()
    keep_ucx_log()
    try:
        _take_part(arguments)
    finally:
        discard_ucx_log()


def _take_part(arguments: argparse.Namespace) -> None:
    owner, memory = _memory(arguments.device)
    name = f"doctor-{arguments.role}"
    transport = NixlTransport(name, memory, host=arguments.host, ports=arguments.ports)
    _say(peer=_packed(Peer.of(transport.name, 0, transport.metadata, memory, _LAYOUT)))
    peer = _unpacked(json.loads(sys.stdin.readline()))
    transport.connect(peer)
    began = time.process_time()
    if arguments.role == "writer":
        _timed(transport, peer, arguments.pause)  # warm-up: UCX connects at first use
        fastest = max(_timed(transport, peer, arguments.pause) for _ in range(_ROUNDS))
        _say(path=write_path(), bytes_per_s=fastest, written=_BLOCK * (1 + _ROUNDS))
    while not select.select([sys.stdin], [], [], arguments.pause)[0]:
        transport.poll()
    _say(cpu_s=time.process_time() - began)
    transport.close()
    del owner


def _timed(transport: NixlTransport, peer: Peer, pause_s: float) -> float:
    began = time.perf_counter()
    write = transport.write(peer, [Copy(0, 0, _BLOCK)], b"")
    while True:
        for event in transport.poll():
            match event:
                case WriteDone(number) if number == write:
                    return _BLOCK / (time.perf_counter() - began)
                case WriteFailed(_, reason):
                    raise SystemExit(reason)
        if pause_s:
            time.sleep(pause_s)


def _memory(device: str) -> tuple[Any, PoolMemory]:
    """One block, and the object that owns its memory."""
    if device == "cpu":
        import numpy as np

        array = np.ones(_BLOCK, dtype=np.uint8)
        return array, PoolMemory(array.ctypes.data, _BLOCK, 1, view=array.data)
    import torch

    tensor = torch.ones(_BLOCK, dtype=torch.uint8, device=device)
    return tensor, PoolMemory(tensor.data_ptr(), _BLOCK, 1, device=device)


def _packed(peer: Peer) -> dict[str, Any]:
    return {**asdict(peer), "metadata": base64.b64encode(peer.metadata).decode()}


def _unpacked(fields: dict[str, Any]) -> Peer:
    return Peer(**{**fields, "metadata": base64.b64decode(fields["metadata"])})


def _say(**what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
