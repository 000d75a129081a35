"""A client of the HTTP API for the terminal commands: the standard library's client, with typed errors."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from router.config.table import SETTINGS

_DEFAULT_URL: Final = f"http://127.0.0.1:{SETTINGS['http_port'].default}"
_KEY_VARIABLE: Final = "OPENAI_API_KEY"
_TIMEOUT_S: Final = 600.0
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


class Unreachable(Exception):
    """No router answers there, or the connection broke."""


class ApiError(Exception):
    """The router refused or failed a request."""

    def __init__(
        self, status: int, body: bytes, retry_after_s: float | None = None, request_id: str = ""
    ) -> None:
        self.status = status
        self.body = _json_or_text(body)
        """The router's response."""
        self.retry_after_s = retry_after_s
        self.request_id = request_id
        """The id under which the router's log has the details."""
        super().__init__(f"{_message(self.body)} (HTTP {status})")


class ApiClient:
    """Safe to use from several threads."""

    def __init__(self, url: str, key: str | None = None, ca_file: Path | None = None) -> None:
        """Raises ValueError for a wrong URL, OSError for a file without certificates."""
        self.url: Final = url.rstrip("/").removesuffix("/v1")
        self._key = key
        self._opener = _opener(self.url, ca_file)

    def get(self, path: str) -> Any:
        """The answer's JSON. Raises ApiError, Unreachable."""
        return json.loads(self._read(self._request(path, None)))

    def post(self, path: str, body: object) -> Any:
        """The answer's JSON. Raises ApiError, Unreachable."""
        return json.loads(self._read(self._request(path, body)))

    def stream(self, path: str, body: object) -> Generator[dict[str, Any], None, None]:
        """Server-sent events up to [DONE]. Raises ApiError (also for an event with an error), Unreachable."""
        try:
            with closing(self._open(self._request(path, body))) as answer:
                for line in answer:
                    if not line.startswith(b"data: "):
                        continue
                    data = line[len(b"data: ") :].strip()
                    if data == b"[DONE]":
                        return
                    event: dict[str, Any] = json.loads(data)
                    if "error" in event:
                        raise ApiError(200, data)
                    yield event
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        raise Unreachable(f"the answer of {self.url} ended early")

    def _read(self, request: Request) -> bytes:
        try:
            with closing(self._open(request)) as answer:
                content: bytes = answer.read()
                return content
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None

    def _open(self, request: Request) -> Any:
        try:
            return self._opener.open(request, timeout=_TIMEOUT_S)
        except HTTPError as error:
            with error:
                raise ApiError(
                    error.code,
                    error.read(),
                    _seconds(error.headers.get("retry-after")),
                    error.headers.get("x-request-id", ""),
                ) from None

    def _request(self, path: str, body: object) -> Request:
        headers = {} if self._key is None else {"authorization": f"Bearer {self._key}"}
        if body is None:
            return Request(self.url + path, headers=headers)
        headers["content-type"] = "application/json"
        return Request(self.url + path, json.dumps(body).encode(), headers, method="POST")

    def _unreachable(self, error: Exception) -> Unreachable:
        reason = error.reason if isinstance(error, URLError) else error
        return Unreachable(f"no router answers at {self.url} ({reason}); see --url")


def add_api_arguments(parser: argparse.ArgumentParser, *, key: str = "API key") -> None:
    """--url, --key-file and --ca-file; see `api_of`."""
    parser.add_argument("--url", default=_DEFAULT_URL, help="URL of the router (default: %(default)s)")
    parser.add_argument(
        "--key-file",
        type=Path,
        metavar="FILE",
        help=f"file whose first key is sent as {key} (default: ${_KEY_VARIABLE}, if set)",
    )
    parser.add_argument(
        "--ca-file",
        type=Path,
        metavar="FILE",
        help="PEM certificates of authorities to trust for https, such as the router's own --tls-cert"
        " (default: the system's, or $SSL_CERT_FILE)",
    )


def api_of(arguments: argparse.Namespace) -> ApiClient:
    """Raises OSError if a file cannot be read, ValueError if the key file holds no key."""
    return ApiClient(arguments.url, _key(arguments.key_file), arguments.ca_file)


def _key(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get(_KEY_VARIABLE) or None
    lines = (line.strip() for line in path.read_text().splitlines())
    key = next((line for line in lines if line and not line.startswith("#")), None)
    if key is None:
        raise ValueError(f"--key-file {path} holds no key")
    return key


def _opener(url: str, ca_file: Path | None) -> OpenerDirector:
    """An opener that uses no proxy for loopback."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"--url {url}: give http://HOST:PORT or https://HOST:PORT")
    try:
        tls = ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as error:
        raise ValueError(f"--ca-file {ca_file} holds no certificate ({error.reason})") from None
    proxies = [ProxyHandler({})] if parts.hostname in _LOOPBACK else []
    return build_opener(HTTPSHandler(context=tls), *proxies)


def _json_or_text(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


def _message(body: Any) -> str:
    match body:
        case {"error": {"message": str(message)}}:
            return message
        case _:
            return str(body)[:500]


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
