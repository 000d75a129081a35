"""Opens a worker's KV tiers: memory and files of the sizes configured, and the threads that copy."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Final

from common.block_key import root_key
from engine.kv.tiers.limits import TierLimits
from engine.kv.tiers.stats import Tier
from engine.kv.tiers.tiers import KVTiers
from worker.config import TierConfig
from worker.kv_copies import TierError, open_copies
from worker.kv_pool_access import layout_of
from worker.parts import Parts
from worker.tensor_parallel.rank_tiers import RunningCopier, open_ranks

log = logging.getLogger(__name__)

_BATCH_BYTES: Final = 32 << 20
"""Copied down at a time: a millisecond of a PCIe 5 link, so that a promotion does not wait for long."""
_LOAD_BYTES: Final = 256 << 20
"""Read from disk at a time."""


def limits_for(tiers: TierConfig, num_pages: int, page_bytes: int) -> TierLimits:
    """Sizes in pages, for a pool of `num_pages`. `page_bytes`: over all ranks. Raises TierError."""
    slots, files = tiers.host_bytes // page_bytes, tiers.second_tier_bytes // page_bytes
    if slots < 2:
        raise TierError(
            f"--host-kv-gb {tiers.host_bytes / 2**30:g} has no room for two KV pages of"
            f" {page_bytes / 2**20:.1f} MiB; raise it"
        )
    return TierLimits(
        host_slots=slots,
        disk_files=files,
        below=Tier.DISK if tiers.object_url is None else Tier.OBJECT,
        batch=max(1, min(_BATCH_BYTES // page_bytes, num_pages // 8, slots // 4)),
        loads=max(1, min(_LOAD_BYTES // page_bytes, slots // 2)),
    )


def open_tiers(parts: Parts, config: TierConfig) -> RunningCopier:
    """Give a worker's engine its tiers, and start their threads, which the caller stops.

    With several ranks, while the others call `serve_tiers`. Raises TierError.
    """
    engine, runner = parts.engine, parts.runner
    pool, num_ranks = runner.kv, runner.communicator.shard.size
    if config.host_bytes > (available := _available_bytes()):
        raise TierError(
            f"--host-kv-gb {config.host_bytes / 2**30:g}: {available / 2**30:.1f} GiB of memory are available"
            f" for {parts.config.worker_id}; lower it"
        )
    page_bytes = pool.page_bytes * num_ranks + engine.kv.sidecars.record_bytes
    limits = limits_for(config, pool.num_pages, page_bytes)

    def wake() -> None:
        parts.inbox.post(lambda: None)

    opened = open_copies if num_ranks == 1 else open_ranks
    copies = opened(
        parts.config,
        runner,
        limits.host_slots,
        with_files=limits.disk_files > 0,
        wake=wake,
        on_fatal=parts.inbox.fail,
        sidecars=engine.kv.sidecars,
    )
    tiers = KVTiers(limits, page_bytes=page_bytes, groups=pool.groups)
    tiers.restore(copies.found)
    layout = layout_of(runner).hash
    engine.kv.use_tiers(
        tiers, copies.copier, lambda: root_key(f"{layout} {runner.weights}"), runner.pages_of_slot
    )
    copies.copier.start()
    log.info(
        "KV tiers: %d pages of host memory, %d on disk (%d found), beside %d in the pool",
        limits.host_slots,
        limits.disk_files,
        len(tiers.disk),
        pool.num_pages,
    )
    return copies.copier


def _available_bytes() -> int:
    """Memory that can be taken without swapping."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
