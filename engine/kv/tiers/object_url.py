"""Where KV is in an object store: `s3://BUCKET/PREFIX`, with `?endpoint=URL` for stores other than AWS's."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True, slots=True)
class ObjectUrl:
    bucket: str
    prefix: str
    """Empty, or with a slash at its end."""
    endpoint: str | None = None
    """None: what the environment says, else AWS."""

    @classmethod
    def parse(cls, text: str) -> ObjectUrl:
        """Raises ValueError."""
        url = urlsplit(text)
        query = parse_qs(url.query, keep_blank_values=True)
        endpoint = query.pop("endpoint", [None])[-1]
        if url.scheme != "s3" or not url.netloc or query or url.fragment:
            raise ValueError("use s3://BUCKET/PREFIX, or s3://BUCKET/PREFIX?endpoint=URL")
        if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
            raise ValueError(f"endpoint {endpoint!r} is not a URL with http or https")
        prefix = url.path.strip("/")
        return cls(url.netloc, f"{prefix}/" if prefix else "", endpoint)
