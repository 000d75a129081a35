"""Which prefixes the workers of this cluster cache together, with their tokens, as a sequence of events.

Workers report pages by hash, without their tokens, which subscribers need for hashes of their own. The router
knows the tokens of the requests that it served, so a block is published when some worker has it and an ended
request of this router had its tokens. Pages of other routers' requests are published when a request of this
router has the same prefix.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from common.block_hash import BlockHash, block_hashes, root_hash
from common.origin import NO_NAMESPACE, Namespace, namespace_of
from common.token_array import token_array
from rpc.baton.v1 import worker_pb2

_UNSTORED_BLOCKS: Final = 100_000
"""Blocks of known tokens that no worker has; of about 300 bytes each with pages of 16 tokens."""


ExtraKeys: TypeAlias = tuple[int | str, ...]
"""What a block is computed from beside its tokens, as vLLM lists it: name of the adapter, keys of media
positions, and for the first block the salt, or a digest of what else separates it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBlocks:
    """What names a request's KV beside its tokens; see `common.origin`."""

    namespace: Namespace = NO_NAMESPACE
    keys: Sequence[int] = ()
    """Keys of the prompt's positions; empty: the tokens."""
    adapter: str = ""
    adapter_digest: bytes = b""
    adapter_start: int | None = None
    """Position from which an activated adapter is used; None: from the first one."""
    cache_salt: str = ""

    @property
    def _separation(self) -> str:
        """What separates it from requests with the same adapter: a salt, or a digest of all there is."""
        adapter = self.adapter_digest if self.adapter_start is None else b""
        salt = self.cache_salt
        if self.namespace == namespace_of(adapter=adapter):
            return ""
        salted = namespace_of(adapter=adapter, cache_salt=salt)
        return salt if self.namespace == salted else self.namespace.hex()

    def hashes(self, tokens: Sequence[int], page_size: int) -> list[BlockHash]:
        """Hashes of the full blocks of prompt and answer."""
        keys = token_array(self.keys) + token_array(tokens[len(self.keys) :]) if self.keys else tokens
        return block_hashes(keys, page_size, root_hash(page_size, self.namespace))

    def adapter_until(self, end: int) -> str:
        """Name of the adapter with which some of the tokens before `end` are computed."""
        return self.adapter if end > (self.adapter_start or 0) else ""

    def extra_keys(self, tokens: Sequence[int], start: int) -> ExtraKeys:
        """Extra keys of a block of `tokens` that begins at position `start`."""
        if not self.namespace and not self.keys:
            return ()
        adapter = self.adapter_until(start + len(tokens))
        extra: list[int | str] = [adapter] if adapter else []
        extra += (key for key, token in zip(self.keys[start:], tokens, strict=False) if key != token)
        if not start and (separation := self._separation):
            extra.append(separation)
        return tuple(extra)


TOKENS_ALONE: Final = NamedBlocks()


def named_by(work: worker_pb2.Work) -> NamedBlocks:
    return NamedBlocks(
        namespace=work.namespace,
        keys=work.prompt_keys,
        adapter=work.adapter,
        adapter_digest=work.adapter_digest,
        adapter_start=work.adapter_start if work.HasField("adapter_start") else None,
        cache_salt=work.cache_salt,
    )


@dataclass(slots=True)
class BlocksStored:
    """Blocks that follow each other, which a worker has and none had before."""

    parent: BlockHash | None
    """The block before the first one; None: the first one begins a prompt."""
    blocks: list[BlockHash] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    """Tokens of all blocks."""
    extra_keys: dict[BlockHash, ExtraKeys] = field(default_factory=dict)
    """Extra keys of the blocks that have some."""
    adapter: str = ""


@dataclass(slots=True)
class BlocksRemoved:
    """Blocks that no worker has any more."""

    blocks: list[BlockHash]


BlockEvent: TypeAlias = BlocksStored | BlocksRemoved


@dataclass(frozen=True, slots=True)
class _Content:
    parent: BlockHash | None
    tokens: Sequence[int]
    extra_keys: ExtraKeys
    adapter: str


class CachedBlocks:
    """Every method costs O(blocks or tokens named); `lost` costs O(blocks of the worker)."""

    def __init__(self, page_size: int, unstored: int = _UNSTORED_BLOCKS) -> None:
        self.page_size: Final = page_size
        self._limit: Final = unstored
        self._of_worker: dict[str, set[BlockHash]] = {}
        self._holders: Counter[BlockHash] = Counter()
        """Number of workers that have a block."""
        self._published: set[BlockHash] = set()
        self._unstored: OrderedDict[BlockHash, _Content] = OrderedDict()
        """Known blocks that no worker has, the least recently named first."""
        self._events: list[BlockEvent] = []

    def take(self) -> list[BlockEvent]:
        """The events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def learn(self, tokens: Sequence[int], named: NamedBlocks = TOKENS_ALONE) -> None:
        """A request had these tokens: prompt and answer."""
        size, parent = self.page_size, None
        for number, block in enumerate(named.hashes(tokens, size)):
            if block not in self._published:
                start, end = number * size, (number + 1) * size
                part, adapter = tokens[start:end], named.adapter_until(end)
                content = _Content(parent, part, named.extra_keys(part, start), adapter)
                if block in self._holders:
                    self._publish(block, content)
                else:
                    self._keep(block, content)
            parent = block

    def stored(self, worker: str, blocks: Iterable[BlockHash]) -> None:
        known = self._of_worker.setdefault(worker, set())
        for block in blocks:
            if block not in known:
                known.add(block)
                self._holders[block] += 1
                if content := self._unstored.pop(block, None):
                    self._publish(block, content)

    def removed(self, worker: str, blocks: Iterable[BlockHash]) -> None:
        known = self._of_worker.get(worker, set())
        gone = []
        for block in blocks:
            if block in known:
                known.remove(block)
                self._holders[block] -= 1
                if not self._holders[block]:
                    del self._holders[block]
                    gone.append(block)
        if published := [block for block in gone if block in self._published]:
            self._published.difference_update(published)
            self._events.append(BlocksRemoved(published))

    def lost(self, worker: str) -> None:
        """The worker has ended, or the connection to it, which will report anew."""
        self.removed(worker, list(self._of_worker.get(worker, ())))
        self._of_worker.pop(worker, None)

    def _keep(self, block: BlockHash, content: _Content) -> None:
        self._unstored[block] = content
        self._unstored.move_to_end(block)
        if len(self._unstored) > self._limit:
            self._unstored.popitem(last=False)

    def _publish(self, block: BlockHash, content: _Content) -> None:
        self._published.add(block)
        last = self._events[-1] if self._events else None
        follows = isinstance(last, BlocksStored) and last.blocks[-1] == content.parent
        if not isinstance(last, BlocksStored) or not follows or last.adapter != content.adapter:
            last = BlocksStored(content.parent, adapter=content.adapter)
            self._events.append(last)
        last.blocks.append(block)
        last.tokens += content.tokens
        if content.extra_keys:
            last.extra_keys[block] = content.extra_keys
