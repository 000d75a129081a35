"""Origins of web pages, as --cors-origins names them and as browsers send them."""

from __future__ import annotations

from urllib.parse import urlsplit

__all__ = ["ANY_ORIGIN", "is_origin", "origins_of"]

ANY_ORIGIN = "*"


def origins_of(setting: str | None) -> tuple[str, ...]:
    """The origins of a list with commas; browsers write scheme and host in lower case."""
    return tuple(name.strip().lower() for name in (setting or "").split(",") if name.strip())


def is_origin(name: str) -> bool:
    """Whether a browser could send `name`: scheme, host and port, and nothing after them. "*" is one too."""
    if name == ANY_ORIGIN:
        return True
    try:
        parts = urlsplit(name)
        port = parts.port
    except ValueError:
        return False
    default = {"http": 80, "https": 443}.get(parts.scheme)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    written = f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "")
    named = bool(parts.hostname) and "*" not in name  # no patterns: origins are compared as they are
    return default is not None and named and port != default and name == written
