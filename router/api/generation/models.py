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

    def find(self, name: str, adapter: str = "") -> Generation:
        """The model of this name, which may be that of an adapter, or `model:adapter`. An empty one is the
        served model, if there is one only.

        `adapter`: used if the name has none. Raises NotFound, InvalidRequest.
        """
        found, named = self._split(name)
        return found.with_adapter(named or adapter) if named or adapter else found

    def _split(self, name: str) -> tuple[Generation, str]:
        """A model, and the adapter that the name has, which may not exist."""
        if name not in self._by_name:
            for base, generation in self._by_name.items():
                if name in generation.adapter_names:
                    return generation, name
                if name.startswith(f"{base}:"):
                    return generation, name.removeprefix(f"{base}:")
        return self._model(name), ""

    def _model(self, name: str) -> Generation:
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
