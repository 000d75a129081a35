"""Loads and checks the frontends' access settings: API keys, TLS and CORS."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from router.config.flags.origins import origins_of
from router.config.settings import RouterConfig
from router.frontend.api_keys import ApiKeys
from rpc.tls import BadCertificate, TlsFiles
from worker.network import is_loopback

__all__ = ["Access"]

_log = logging.getLogger(__name__)


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
