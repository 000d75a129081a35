"""API keys: who may use the frontends."""

from __future__ import annotations

import hashlib
import logging
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from router.errors import Unauthenticated
from router.processing.clients import Client

__all__ = ["ApiKeys", "BadKeyFile"]

_log = logging.getLogger(__name__)

_MIN_CHARACTERS: Final = 16
_SCHEME: Final = "bearer"


class BadKeyFile(Exception):
    """The file with the API keys cannot be used; the message says why, and shows no key."""


class ApiKeys:
    """Tells clients by the keys they present.

    A key is found by its digest under a secret that is drawn at start, so what a wrong key costs in time
    says nothing about the right ones; and the keys themselves are not kept.
    """

    def __init__(
        self,
        names: Mapping[str, str],
        max_requests: int | None = None,
        priorities: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`names`: of each key's client, by key. `max_requests`: of each client, at a time. `priorities`:
        limits of those clients that may set a priority, by key.
        """
        self._salt: Final = secrets.token_bytes(32)
        self._clients: Final = {
            self._digest(key): Client(name, max_requests, max_priority=priorities.get(key, 0))
            for key, name in names.items()
        }

    @classmethod
    def load(cls, path: Path, max_requests: int | None = None, *, flag: str = "--api-key-file") -> ApiKeys:
        """One key a line; empty lines, and lines that begin with #, say nothing. `KEY priority=N`: its
        requests may have priorities from -N to N; those of other keys have priority 0.

        Raises BadKeyFile, which names `flag`.
        """
        try:
            text = path.read_text(encoding="ascii")
            mode = path.stat().st_mode
        except OSError as error:
            raise BadKeyFile(f"{flag} {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise BadKeyFile(f"{flag} {path}: a key may have ASCII characters only") from None
        names: dict[str, str] = {}
        priorities: dict[str, int] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            key, priority = _with_priority(line.strip())
            if not key or key.startswith("#"):
                continue
            if len(key) < _MIN_CHARACTERS or not key.isprintable() or " " in key:
                raise BadKeyFile(
                    f"{flag} {path}, line {number}: a key has at least {_MIN_CHARACTERS} printable"
                    " characters and no space; `openssl rand -hex 32` makes a good one"
                )
            names.setdefault(key, f"key-{number}")
            priorities.setdefault(key, priority)
        if not names:
            raise BadKeyFile(f"{flag} {path} has no key in it; with none, nobody could come in")
        if mode & stat.S_IROTH:
            _log.warning("%s %s can be read by every user of this machine", flag, path)
        return cls(names, max_requests, priorities)

    def identify(self, authorization: str | None) -> Client:
        """By the value of an `Authorization` header. Raises Unauthenticated."""
        if authorization is None:
            raise Unauthenticated("An API key is needed: send it as `Authorization: Bearer KEY`.")
        client = self.find(authorization)
        if client is None:
            raise Unauthenticated("The API key is wrong.")
        return client

    def find(self, authorization: str | None) -> Client | None:
        """By the value of an `Authorization` header; None if it brings none of these keys."""
        scheme, _, key = (authorization or "").partition(" ")
        return self._clients.get(self._digest(key.strip())) if scheme.lower() == _SCHEME else None

    def _digest(self, key: str) -> bytes:
        return hashlib.blake2b(key.encode(), key=self._salt).digest()


def _with_priority(line: str) -> tuple[str, int]:
    """The key of a line and its limit of priorities. A line of another form is left whole: it is no key."""
    key, blank, limit = line.partition(" ")
    number = limit.strip().removeprefix("priority=")
    if blank and limit.strip().startswith("priority=") and number.isdecimal():
        return key, int(number)
    return line, 0
