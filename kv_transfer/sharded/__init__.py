"""Handoffs between workers whose KV lies in several pools, a rank's heads in each.

Sender, receiver and tickets see one worker with pages of all heads. Behind the transport a write becomes as
many as there are pairs of ranks with heads in common, and behind the digester a page's digest becomes a sum.
"""

from kv_transfer.sharded.digester import ShardedDigester
from kv_transfer.sharded.link import RankLink
from kv_transfer.sharded.server import serve_rank
from kv_transfer.sharded.transport import ShardedTransport

__all__ = ["RankLink", "ShardedDigester", "ShardedTransport", "serve_rank"]
