"""Access to the frontends: API keys, TLS and CORS, loaded, checked, and reloaded when their files change."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from router.api.generation.tenants import Share, Tenant
from router.config.flags.text_settings import origins_of
from router.config.settings import RouterConfig
from router.errors import Unauthenticated
from rpc.tls import BadCertificate, TlsFiles
from worker.network import is_loopback

_log = logging.getLogger(__name__)

_MIN_CHARACTERS: Final = 16
_SCHEME: Final = "bearer"


class BadKeyFile(Exception):
    """The key file cannot be used. The message says why, and contains no key."""


class ApiKeys:
    """Identifies tenants by their keys. `reload` reads the file again.

    Keys are looked up by a digest keyed with a random secret, so response times reveal nothing about valid
    keys. The keys themselves are not kept in memory.
    """

    def __init__(self, names: Mapping[str, str], max_requests: int | None = None) -> None:
        """`names`: tenant names by key. `max_requests`: concurrent requests per tenant."""
        self._salt: Final = secrets.token_bytes(32)
        self._max_requests: Final = max_requests
        self.share: Final = Share()
        """This router's part of each tenant's limit."""
        self._tenants: dict[bytes, Tenant] = {}
        self._file: _KeyFile | None = None
        self._set({key: _Line(name) for key, name in names.items()})

    @classmethod
    def load(cls, path: Path, max_requests: int | None = None, *, flag: str = "--api-key-file") -> ApiKeys:
        """One key per line; empty lines and lines that begin with # are ignored. `KEY priority=N` allows
        priorities from -N to N; requests of other keys have priority 0. `KEY requests=N` is the key's own
        `max_requests`.

        Raises BadKeyFile, which names `flag`.
        """
        keys = cls({}, max_requests)
        keys._file = _KeyFile(path, flag)
        keys.reload()
        return keys

    @property
    def files(self) -> tuple[Path, ...]:
        return () if self._file is None else (self._file.path,)

    def __str__(self) -> str:
        return "API keys" if self._file is None else f"{self._file.flag} {self._file.path}"

    def reload(self) -> None:
        """Read the file again; no effect without a file. Requests of a removed key that run go on.

        Raises BadKeyFile, and keeps the keys as they were.
        """
        if self._file is not None:
            self._set(self._file.read())

    def _set(self, lines: Mapping[str, _Line]) -> None:
        tenants: dict[bytes, Tenant] = {}
        for key, line in lines.items():
            digest = self._digest(key)
            # A tenant that stays is the same object: its running requests count against its limit.
            tenant = tenants[digest] = self._tenants.get(digest) or Tenant(line.name, share=self.share)
            tenant.name, tenant.max_priority = line.name, line.priority
            tenant.max_requests = self._max_requests if line.requests is None else line.requests
        self._tenants = tenants

    def identify(self, authorization: str | None) -> Tenant:
        """The tenant of an `Authorization` header. Raises Unauthenticated."""
        if authorization is None:
            raise Unauthenticated("An API key is needed: send it as `Authorization: Bearer KEY`.")
        tenant = self.find(authorization)
        if tenant is None:
            raise Unauthenticated("The API key is wrong.")
        return tenant

    def find(self, authorization: str | None) -> Tenant | None:
        """The tenant of an `Authorization` header; None if it has none of these keys."""
        scheme, _, key = (authorization or "").partition(" ")
        return self._tenants.get(self._digest(key.strip())) if scheme.lower() == _SCHEME else None

    def _digest(self, key: str) -> bytes:
        return hashlib.blake2b(key.encode(), key=self._salt).digest()


_LIMIT: Final = re.compile(r"priority=\d+|requests=0*[1-9]\d*", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Line:
    """Line of a key file: the name of the key's tenant, and its limits."""

    name: str
    priority: int = 0
    requests: int | None = None
    """None: that of all keys."""


@dataclass(frozen=True, slots=True)
class _KeyFile:
    path: Path
    flag: str

    def read(self) -> dict[str, _Line]:
        """Read the lines by key. Raises BadKeyFile."""
        path, flag = self.path, self.flag
        try:
            text = path.read_text(encoding="ascii")
            mode = path.stat().st_mode
        except OSError as error:
            raise BadKeyFile(f"{flag} {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise BadKeyFile(f"{flag} {path}: a key may have ASCII characters only") from None
        lines: dict[str, _Line] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            key, *limits = line.split() or [""]
            if not key or key.startswith("#"):
                continue
            if len(key) < _MIN_CHARACTERS or not key.isprintable():
                raise BadKeyFile(
                    f"{flag} {path}, line {number}: a key has at least {_MIN_CHARACTERS} printable"
                    " characters and no space; `openssl rand -hex 32` makes a good one"
                )
            if not all(map(_LIMIT.fullmatch, limits)):
                raise BadKeyFile(
                    f"{flag} {path}, line {number}: after the key, priority=N and requests=N may follow, each"
                    " with a whole number, that of requests 1 or more"
                )
            numbers = {name: int(value) for name, _, value in (limit.partition("=") for limit in limits)}
            lines.setdefault(key, _Line(f"key-{number}", **numbers))
        if not lines:
            raise BadKeyFile(f"{flag} {path} has no key in it; without one, no client could connect")
        if mode & stat.S_IROTH:
            _log.warning("%s %s can be read by every user of this machine", flag, path)
        return lines


_LOOK_S: Final = 10.0
"""Interval of looking for changed files."""


@dataclass(frozen=True, slots=True)
class Access:
    keys: ApiKeys | None = None
    """None: no authentication."""
    tls: TlsFiles | None = None
    """None: no encryption."""
    metrics_keys: ApiKeys | None = None
    """None: metrics are open without `keys`, and closed with `keys`."""
    admin_keys: ApiKeys | None = None
    """None: routes that change what is served are closed."""
    cors_origins: tuple[str, ...] = ()
    """Web pages whose scripts may call the HTTP API; "*" for all."""
    rl: bool = False
    """Without `admin_keys`, open those routes to all callers of the others."""

    @classmethod
    def load(cls, config: RouterConfig) -> Access:
        """Raises BadKeyFile, BadCertificate."""
        settings, host = config.access, config.frontend.host
        keys = metrics_keys = admin_keys = tls = None
        if settings.api_key_file is not None:
            keys = ApiKeys.load(Path(settings.api_key_file), settings.max_requests_per_key)
        if settings.metrics_key_file is not None:
            metrics_keys = ApiKeys.load(Path(settings.metrics_key_file), flag="--metrics-key-file")
        if settings.admin_key_file is not None:
            admin_keys = ApiKeys.load(Path(settings.admin_key_file), flag="--admin-key-file")
        if settings.tls_cert is not None and settings.tls_key is not None:
            tls = TlsFiles(Path(settings.tls_cert), Path(settings.tls_key))
            try:
                tls.check()
            except BadCertificate as error:
                raise BadCertificate(f"--tls-cert, --tls-key: {error}") from None
        if keys is not None and metrics_keys is None:
            _log.info("/metrics, /sd/workers, /status are closed; --metrics-key-file opens them to its keys")
        if not is_loopback(host):
            if settings.rl and admin_keys is None:
                _log.warning("--host %s --rl: anyone who reaches it may replace the weights", host)
            if keys is None:
                _log.warning("--host %s is served without authentication; see --api-key-file", host)
            if tls is None:
                _log.warning("--host %s is served without encryption; see --tls-cert", host)
        return cls(keys, tls, metrics_keys, admin_keys, origins_of(settings.cors_origins), settings.rl)

    @property
    def has_files(self) -> bool:
        return any(part is not None for part in self._parts)

    @property
    def _parts(self) -> tuple[ApiKeys | TlsFiles | None, ...]:
        """What is read from files."""
        return self.keys, self.metrics_keys, self.admin_keys, self.tls

    def reload(self) -> None:
        """Read all files again. What cannot be used stays as it was, and is logged."""
        for part in self._parts:
            if part is None:
                continue
            try:
                part.reload()
            except (BadCertificate, BadKeyFile) as error:
                _log.error("%s; what was read before stays valid", error)
            else:
                _log.info("read %s again", part)

    async def watch(self, interval_s: float = _LOOK_S) -> None:
        """Reload when a file changes, for ever."""
        seen = self._stamps()
        while True:
            await asyncio.sleep(interval_s)
            if (now := self._stamps()) != seen:
                seen = now
                self.reload()

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        """Stamp of each file, which changes whenever it is written or replaced."""
        return [_stamp(file) for part in self._parts if part for file in part.files]


OPEN_ACCESS: Final = Access()
"""Without keys and encryption."""


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
