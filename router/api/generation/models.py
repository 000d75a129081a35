"""The models that a router serves: each request names one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from router.api.generation.generation import Generation
from router.errors import InvalidRequest, NotFound


class ServedModels:
    """Generations by name, in the order of the settings; at least one."""

    def __init__(self, generations: Iterable[Generation]) -> None:
        self._by_name: Final = {generation.model.name: generation for generation in generations}

    def __iter__(self) -> Iterator[Generation]:
        return iter(self._by_name.values())

    @property
    def first(self) -> Generation:
        return next(iter(self))

    @property
    def names(self) -> str:
        """For messages."""
        return ", ".join(repr(name) for name in self._by_name)

    def find(self, name: str) -> Generation:
        """The model of this name. An empty one is the served model, if there is one only.

        Raises NotFound, InvalidRequest.
        """
        if not name and len(self._by_name) == 1:
            return self.first
        if not name:
            raise InvalidRequest(
                f"The parameter model is missing; this server has {self.names}.",
                param="model",
                code="missing_required_parameter",
            )
        if (found := self._by_name.get(name)) is None:
            raise NotFound(
                f"The model {name[:100]!r} does not exist; this server has {self.names}.",
                param="model",
                code="model_not_found",
            )
        return found

    def ready(self) -> bool:
        """Whether a request of any model can be served."""
        return any(generation.ready() for generation in self)

    def release_session(self, key: str) -> None:
        """See `Generation.release_session`."""
        for generation in self:
            generation.release_session(key)

    def abort(self, request_id: str) -> bool:
        """See `Generation.abort`."""
        found = [generation.abort(request_id) for generation in self]
        return any(found)

    def fail_all(self) -> None:
        """See `Generation.fail_all`."""
        for generation in self:
            generation.fail_all()
