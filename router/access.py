"""Who may use the front doors, and whether others can listen in: what the flags say, loaded and checked."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from router.api_keys import ApiKeys
from router.config import RouterConfig
from rpc.tls import BadCertificate, TlsFiles
from worker.network import is_loopback

__all__ = ["Access"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Access:
    keys: ApiKeys | None
    """None: everybody is let in."""
    tls: TlsFiles | None
    """None: nothing is encrypted."""

    @classmethod
    def load(cls, config: RouterConfig) -> Access:
        """Raises BadKeyFile, BadCertificate."""
        keys = tls = None
        if config.api_key_file is not None:
            keys = ApiKeys.load(Path(config.api_key_file), config.max_requests_per_key)
        if config.tls_cert is not None and config.tls_key is not None:
            tls = TlsFiles(Path(config.tls_cert), Path(config.tls_key))
            try:
                tls.check()
            except BadCertificate as error:
                raise BadCertificate(f"--tls-cert, --tls-key: {error}") from None
        if not is_loopback(config.host):
            if keys is None:
                _log.warning("whoever reaches --host %s is served; see --api-key-file", config.host)
            if tls is None:
                _log.warning("--host %s is served without encryption; see --tls-cert", config.host)
        return cls(keys, tls)
