"""Loads and checks the frontends' access settings: API keys, TLS and CORS. Reloads files that change."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from router.config.flags.text_settings import origins_of
from router.config.settings import RouterConfig
from router.frontend.api_keys import ApiKeys, BadKeyFile
from rpc.tls import BadCertificate, TlsFiles
from worker.network import is_loopback

_log = logging.getLogger(__name__)

_LOOK_S: Final = 10.0
"""Interval of looking for changed files."""


@dataclass(frozen=True, slots=True)
class Access:
    keys: ApiKeys | None
    """None: no authentication."""
    tls: TlsFiles | None
    """None: no encryption."""
    metrics_keys: ApiKeys | None = None
    """None: metrics are open without `keys`, and closed with `keys`."""
    cors_origins: tuple[str, ...] = ()
    """Web pages whose scripts may call the HTTP API; "*" for all."""

    @classmethod
    def load(cls, config: RouterConfig) -> Access:
        """Raises BadKeyFile, BadCertificate."""
        settings, host = config.access, config.frontend.host
        keys = metrics_keys = tls = None
        if settings.api_key_file is not None:
            keys = ApiKeys.load(Path(settings.api_key_file), settings.max_requests_per_key)
        if settings.metrics_key_file is not None:
            metrics_keys = ApiKeys.load(Path(settings.metrics_key_file), flag="--metrics-key-file")
        if settings.tls_cert is not None and settings.tls_key is not None:
            tls = TlsFiles(Path(settings.tls_cert), Path(settings.tls_key))
            try:
                tls.check()
            except BadCertificate as error:
                raise BadCertificate(f"--tls-cert, --tls-key: {error}") from None
        if keys is not None and metrics_keys is None:
            _log.info("/metrics, /sd/workers, /status are closed; --metrics-key-file opens them to its keys")
        if not is_loopback(host):
            if keys is None:
                _log.warning("--host %s is served without authentication; see --api-key-file", host)
            if tls is None:
                _log.warning("--host %s is served without encryption; see --tls-cert", host)
        return cls(keys, tls, metrics_keys, origins_of(settings.cors_origins))

    @property
    def has_files(self) -> bool:
        return not (self.keys is None and self.tls is None and self.metrics_keys is None)

    def reload(self) -> None:
        """Read all files again. What cannot be used stays as it was, and is logged."""
        for part in (self.keys, self.metrics_keys, self.tls):
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
        """Of each file; another value whenever it was written or replaced."""
        return [
            _stamp(file) for part in (self.keys, self.metrics_keys, self.tls) if part for file in part.files
        ]


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
