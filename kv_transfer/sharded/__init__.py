"""Handoffs between tensor-parallel workers: each rank has a KV pool with its heads.

Sender, receiver and tickets see one worker with pages of all heads. ShardedTransport turns a write into one
write per pair of ranks with common heads, and ShardedDigester sums the digests of the ranks.
"""

from kv_transfer.sharded.digester import ShardedDigester
from kv_transfer.sharded.server import serve_rank
from kv_transfer.sharded.transport import ShardedTransport
from kv_transfer.sharded.wire import KINDS, RankSocket

__all__ = ["KINDS", "RankSocket", "ShardedDigester", "ShardedTransport", "serve_rank"]
