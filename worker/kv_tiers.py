"""Opens a worker's KV tiers: memory and files of the sizes configured, and the threads that copy."""

from __future__ import annotations

import logging
import os
import re
from functools import partial
from pathlib import Path
from typing import Final

from common.block_key import root_key
from engine.kv_cache.pool import KVPool
from engine.kv_tiers.block_files import BlockFiles, DirectoryInUse
from engine.kv_tiers.copier import BackgroundCopier, Digest
from engine.kv_tiers.host_pages import HostPages
from engine.kv_tiers.limits import TierLimits
from engine.kv_tiers.tiers import KVTiers
from kv_transfer import KVLayout
from kv_transfer.integrity.device_digest import DeviceDigester
from worker.config import TierConfig
from worker.kv_pool_access import digester_of, layout_of, memory_of
from worker.parts import Parts

__all__ = ["TierError", "limits_for", "open_tiers"]

log = logging.getLogger(__name__)

_BATCH_BYTES: Final = 32 << 20
"""Copied down at a time: a millisecond of a PCIe 5 link, so that a promotion does not wait for long."""
_LOAD_BYTES: Final = 256 << 20
"""Read from disk at a time."""
_AHEAD: Final = 0.5
"""Share of the pool that is kept free or copied, without a disk tier. With one it is all of the pool, so that
a restarted worker finds what was cached."""


class TierError(ValueError):
    """The tiers configured cannot be opened here; the message names the flag."""


def limits_for(tiers: TierConfig, num_pages: int, page_bytes: int) -> TierLimits:
    """Sizes in pages, for a pool of `num_pages`. Raises TierError."""
    slots, files = tiers.host_bytes // page_bytes, tiers.disk_bytes // page_bytes
    if slots < 2:
        raise TierError(
            f"--host-kv-gb {tiers.host_bytes / 2**30:g} has no room for two KV pages of"
            f" {page_bytes / 2**20:.1f} MiB; raise it"
        )
    return TierLimits(
        host_slots=slots,
        disk_files=files,
        ahead=min(slots, num_pages if files else int(num_pages * _AHEAD)),
        batch=max(1, min(_BATCH_BYTES // page_bytes, num_pages // 8, slots // 4)),
        loads=max(1, min(_LOAD_BYTES // page_bytes, slots // 2)),
    )


def open_tiers(parts: Parts, config: TierConfig) -> BackgroundCopier:
    """Give a worker's engine its tiers, and start their threads, which the caller stops.

    Raises TierError.
    """
    engine, runner = parts.engine, parts.runner
    pool, layout = runner.kv, layout_of(runner)
    if config.host_bytes > (available := _available_bytes()):
        raise TierError(
            f"--host-kv-gb {config.host_bytes / 2**30:g}: {available / 2**30:.1f} GiB of memory are available"
            f" for {parts.config.worker_id}; lower it"
        )
    limits = limits_for(config, pool.num_pages, pool.page_bytes)
    tiers = KVTiers(limits, page_bytes=pool.page_bytes, groups=pool.groups)
    files = None
    if config.disk_dir is not None and limits.disk_files:
        files = _files(config.disk_dir / parts.config.worker_id, layout.hash, pool.page_bytes)
        tiers.restore(files.scan())
    copier = BackgroundCopier(
        HostPages(pool.memory, limits.host_slots),
        _digest(pool, layout),
        pool.page_size,
        files,
        device=parts.config.engine.device,
        wake=lambda: parts.inbox.post(lambda: None),
        on_fatal=parts.inbox.fail,
    )
    engine.kv.use_tiers(tiers, copier, root_key(layout.hash), runner.pages_of_slot)
    copier.start()
    log.info(
        "KV tiers: %d pages of host memory, %d on disk (%d found), beside %d in the pool",
        limits.host_slots,
        limits.disk_files,
        len(tiers.disk),
        pool.num_pages,
    )
    return copier


def _digest(pool: KVPool, layout: KVLayout) -> Digest:
    digester = digester_of(pool, memory_of(pool), layout)
    if isinstance(digester, DeviceDigester):
        return digester.begin
    return lambda pages, tail_tokens, _: partial(digester.digest, pages, tail_tokens)


def _files(folder: Path, identity: str, page_bytes: int) -> BlockFiles:
    try:
        return BlockFiles(folder, identity, page_bytes)
    except (OSError, DirectoryInUse) as error:
        raise TierError(f"--disk-kv-dir {folder.parent}: {error}; use another directory") from None


def _available_bytes() -> int:
    """Memory that can be taken without swapping."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
