"""Worker selection policies of `--routing`."""

from __future__ import annotations

from typing import Final

from router.config.settings import Routing
from router.workers.capacity import Choose, least_loaded, power_of_two, prefix_aware, round_robin

__all__ = ["POLICIES"]

POLICIES: Final[dict[Routing, Choose]] = {
    Routing.ROUND_ROBIN: round_robin,
    Routing.LEAST_LOADED: least_loaded,
    Routing.POWER_OF_TWO: power_of_two,
    Routing.PREFIX_AWARE: prefix_aware,
}
