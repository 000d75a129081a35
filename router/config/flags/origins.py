"""Parses and checks the origins of --cors-origins."""

from __future__ import annotations

from urllib.parse import urlsplit

__all__ = ["ANY_ORIGIN", "is_origin", "origins_of"]

ANY_ORIGIN = "*"


def origins_of(setting: str | None) -> tuple[str, ...]:
    """The origins of a comma-separated list, with scheme and host in lower case, as browsers send them."""
    return tuple(name.strip().lower() for name in (setting or "").split(",") if name.strip())


def is_origin(name: str) -> bool:
    """Whether `name` is "*", or an origin that a browser could send: scheme, host and port only."""
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
    named = bool(parts.hostname) and "*" not in name  # no patterns: origins are compared literally
    return default is not None and named and port != default and name == written
