"""The adapters of an engine: which are loaded, and which requests use them."""

from __future__ import annotations

from pathlib import Path

from engine.core.adapters import AdapterInfo
from engine.errors import AdapterRefused


class Adapters:
    """All methods but `read` are called between two steps."""

    def __init__(self) -> None:
        self._loaded: dict[bytes, AdapterInfo] = {}

    def __contains__(self, digest: object) -> bool:
        """Whether requests with this digest are taken."""
        return digest in self._loaded

    def load(self, name: str, path: Path) -> AdapterInfo:
        """Raises AdapterRefused."""
        raise AdapterRefused("this engine takes no adapters")

    def unload(self, digest: bytes) -> AdapterInfo:
        """Raises AdapterRefused."""
        raise AdapterRefused(f"no adapter {digest.hex()} is loaded here")
