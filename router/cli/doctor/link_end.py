"""One end of a link, in its own process, like a worker: `python -m router.cli.doctor.link_end`.

Exchanges JSON, one object per line: prints its own peer data and reads the other end's; the writer then
prints its measurement. Both run until their standard input is closed, and then print their CPU time.
"""

from __future__ import annotations

import argparse
import base64
import json
import select
import sys
import time
from dataclasses import asdict
from typing import Any, Final

from common.kv_groups import full_group
from common.ports import PortRange
from kv_transfer import KVLayout, Peer, PoolMemory
from kv_transfer.planner import Copy
from kv_transfer.transports.base import WriteDone, WriteFailed
from kv_transfer.transports.nixl import NixlTransport
from router.cli.doctor import ucx_log

__all__: list[str] = []

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
    ucx_log.keep()
    try:
        _take_part(arguments)
    finally:
        ucx_log.discard()


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
        _say(path=ucx_log.write_path(), bytes_per_s=fastest, written=_BLOCK * (1 + _ROUNDS))
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
