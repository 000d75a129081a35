"""Sizes and budgets of KV tiers."""

from __future__ import annotations

from dataclasses import dataclass

from engine.kv.tiers.stats import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLimits:
    """Sizes and budgets, in pages."""

    host_slots: int
    disk_files: int = 0
    """Pages in files, on the tier `below`."""
    below: Tier = Tier.DISK
    """DISK: this process owns the files, and deletes those that make room for others. OBJECT: it does not."""
    batch: int = 16
    """Pages of one demotion."""
    demotions: int = 2
    saves: int = 4
    """Jobs of a kind that are under way at a time."""
    loads: int = 64
    """Files being read at a time."""
    disk_pause_s: float = 10.0
    """Seconds after a failed write in which no file is written."""
