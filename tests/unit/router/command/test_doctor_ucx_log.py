"""What UCX's log says about the way of writes."""

from __future__ import annotations

from router.command.doctor.link_end import write_paths_in

PREFIX = "[1795268785.652951] [vm:20286:0]   "
TABLE = """\
+--------+-------------+-----------------------------------+
| {scope} cfg#1                                             |
| {operation} from host memory to host |
+--------+-------------+-----------------------------------+
| Range  | Description |              Config               |
+--------+-------------+-----------------------------------+
| 0..4095 | short       | tcp/lo                           |
| {range} | {way}       | {lanes}                          |
+--------+-------------+-----------------------------------+
"""
WRITE = "remote memory write by ucp_put*(multi)"


def table(scope: str, lanes: str, operation: str = WRITE, range: str = "4096..inf") -> str:
    text = TABLE.format(scope=scope, operation=operation, range=range, way="zero-copy", lanes=lanes)
    return "".join(f"{PREFIX}{line}\n" for line in text.splitlines())


def test_the_way_of_whole_pages_counts_not_that_of_small_messages() -> None:
    assert write_paths_in(table("w intra-node", "cuda_ipc/cuda")) == {
        "intra-node": "cuda_ipc/cuda (zero-copy)"
    }


def test_the_latest_choice_counts_and_ways_within_the_process_do_not() -> None:
    log = table("w intra-node", "tcp/lo") + table("w intra-node", "cma/memory") + table("w self", "self")
    assert write_paths_in(log) == {"intra-node": "cma/memory (zero-copy)"}


def test_peers_on_other_machines_have_a_way_of_their_own() -> None:
    lanes = "50% on rc_mlx5/mlx5_0:1 and 50% on rc_mlx5/mlx5_1:1"
    log = table("w intra-node", "cuda_ipc/cuda") + table("w inter-node", lanes)
    assert write_paths_in(log) == {
        "intra-node": "cuda_ipc/cuda (zero-copy)",
        "inter-node": f"{lanes} (zero-copy)",
    }


def test_other_operations_and_other_text_say_nothing() -> None:
    log = "WARN | nothing | of | this |\n" + table("w intra-node", "tcp/lo", operation="active message")
    assert write_paths_in(log) == {}
