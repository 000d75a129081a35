"""Sleep: the workers give memory back and take it again, by the routes of vLLM and of SGLang."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from starlette.requests import Request

from router.api.generation.params.validation import RequestModel
from router.dispatch.admission.pause_gate import PauseMode
from router.dispatch.weights.weight_updates import WeightUpdates
from router.errors import InvalidRequest

Tag: TypeAlias = Literal["kv_cache", "weights"]
KINDS: Final = frozenset({"kv_cache", "weights"})
_LEVELS: Final = {"0": frozenset[str](), "1": frozenset({"kv_cache"}), "2": KINDS}


class MemoryBody(RequestModel):
    """As SGLang's."""

    tags: list[Tag] | None = None
    """Absent: all."""

    @property
    def kinds(self) -> frozenset[str]:
        return KINDS if self.tags is None else frozenset(self.tags)


async def sleep(updates: WeightUpdates, request: Request, mode: PauseMode) -> None:
    level = request.query_params.get("level", "1")
    if level not in _LEVELS:
        raise InvalidRequest(f"level must be 0, 1 or 2, not {level[:100]!r}.", param="level")
    await updates.sleep(_tags(request) or _LEVELS[level], mode)


async def wake(updates: WeightUpdates, request: Request) -> None:
    await updates.wake(_tags(request) or KINDS)


def _tags(request: Request) -> frozenset[str]:
    tags = frozenset(request.query_params.getlist("tags"))
    if unknown := tags - KINDS:
        raise InvalidRequest(f"tags are kv_cache and weights, not {min(unknown)[:100]!r}.", param="tags")
    return tags
