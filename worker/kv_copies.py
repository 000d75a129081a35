"""Memory, files and threads of the KV tiers of one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from common.block_hash import BlockHash
from common.block_key import PageKey
from engine.device.small_copies import use_kernels
from engine.executor.runner import ModelRunner
from engine.kv.cache.pool import KVPool
from engine.kv.cache.sidecars import NO_SIDECARS, Sidecars
from engine.kv.tiers.block_files import BlockFiles, DirectoryInUse
from engine.kv.tiers.block_objects import BlockObjects, NoObjectStore
from engine.kv.tiers.copier import BackgroundCopier, Digest
from engine.kv.tiers.host_pages import HostPages
from engine.kv.tiers.object_url import ObjectUrl
from kv_transfer import KVLayout
from kv_transfer.integrity.device_digest import DeviceDigester
from worker.config import WorkerConfig
from worker.kv_pool_access import digester_of, layout_of, memory_of


class TierError(ValueError):
    """The tiers configured cannot be opened here; the message names the flag."""


@dataclass(frozen=True, slots=True)
class Copies:
    copier: BackgroundCopier
    """Not started yet."""
    found: list[tuple[PageKey, BlockHash]]
    """Files of an earlier process, from the least to the most recently used."""


def open_copies(
    config: WorkerConfig,
    runner: ModelRunner,
    host_slots: int,
    *,
    with_files: bool,
    wake: Callable[[], None],
    on_fatal: Callable[[BaseException], None],
    sidecars: Sidecars = NO_SIDECARS,
) -> Copies:
    """For the pool of this rank. `sidecars`: on rank 0, which has them for all ranks. Raises TierError."""
    pool, shard = runner.kv, runner.communicator.shard
    layout = replace(layout_of(runner), tp_size=shard.size, tp_rank=shard.rank)
    if pool.tensor.is_cuda:
        use_kernels(pool.tensor.device)  # else every step waits for copies of tiers
    files, found = None, []
    if with_files:
        # Rank 0's are enough: a page is found again if every rank has its part.
        weights = str(runner.weights) if shard.is_first_rank else ""
        files = _files(config, layout, weights, pool.page_bytes + sidecars.record_bytes)
        found = files.scan()
    copier = BackgroundCopier(
        HostPages(pool.memory, host_slots),
        _digest(pool, layout),
        pool.page_size,
        files,
        sidecars=sidecars,
        device=config.engine.device,
        wake=wake,
        on_fatal=on_fatal,
    )
    return Copies(copier, found)


def _digest(pool: KVPool, layout: KVLayout) -> Digest:
    digester = digester_of(pool, memory_of(pool), layout)
    if isinstance(digester, DeviceDigester):
        return digester.begin
    return lambda pages, tail_tokens, _: partial(digester.digest, pages, tail_tokens)


def _files(
    config: WorkerConfig, layout: KVLayout, weights: str, page_bytes: int
) -> BlockFiles | BlockObjects:
    """Each rank has a folder of its own, since it has its part of every page."""
    tiers, identity, rank = config.tiers, f"{layout.hash} {weights}", ""
    assert tiers is not None
    if layout.tp_size > 1:
        identity = f"{identity}, rank {layout.tp_rank} of {layout.tp_size}"
        rank = f".rank-{layout.tp_rank}"
    if tiers.object_url is not None:
        try:
            return BlockObjects(ObjectUrl.parse(tiers.object_url), identity, page_bytes)
        except (ValueError, NoObjectStore) as error:
            raise TierError(f"--object-kv-url {tiers.object_url}: {error}") from None
    assert tiers.disk_dir is not None
    folder = tiers.disk_dir / f"{config.worker_id}{rank}"
    try:
        return BlockFiles(folder, identity, page_bytes)
    except (OSError, DirectoryInUse) as error:
        raise TierError(f"--disk-kv-dir {folder.parent}: {error}; use another directory") from None
