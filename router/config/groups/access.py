"""Settings of access to the APIs: keys, TLS, and the largest request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from router.config.option import Option
from router.request_limits import LOGPROBS_LIMIT

__all__ = ["AccessSettings"]

_GROUP: Final = "access and limits"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    api_key_file: Annotated[
        str | None,
        Option(
            _GROUP,
            "file of API keys, one per line; requests without a valid key are refused (default: no keys)",
            "FILE",
        ),
    ] = None
    metrics_key_file: Annotated[
        str | None,
        Option(
            _GROUP,
            "file of keys for /metrics, /sd/workers and /status, one per line (default: closed with"
            " --api-key-file, else open)",
            "FILE",
        ),
    ] = None
    max_requests_per_key: Annotated[
        int | None,
        Option(_GROUP, "concurrent completions (prompts × n) per API key (default: no limit)", "N", least=1),
    ] = None
    cors_origins: Annotated[
        str | None,
        Option(
            _GROUP,
            "comma-separated origins allowed to call the HTTP API from a browser, such as"
            " https://chat.example.com; * allows any (default: none)",
            "ORIGINS",
        ),
    ] = None
    tls_cert: Annotated[
        str | None,
        Option(
            _GROUP,
            "TLS certificate chain (PEM) of the HTTP and gRPC APIs (default: no TLS)",
            "FILE",
            aliases=("--ssl-certfile", "--tls-cert-path"),
        ),
    ] = None
    tls_key: Annotated[
        str | None,
        Option(
            _GROUP,
            "private key (PEM, no passphrase) of --tls-cert",
            "FILE",
            aliases=("--ssl-keyfile", "--tls-key-path"),
        ),
    ] = None
    max_body_bytes: Annotated[int, Option(_GROUP, "largest request body", "BYTES", least=1)] = 4 << 20
    max_prompt_tokens: Annotated[
        int | None, Option(_GROUP, "longest prompt (default: --max-model-len)", "TOKENS", least=1)
    ] = None
    max_completions: Annotated[
        int, Option(_GROUP, "largest number of completions (prompts × n) per request", "N", least=1)
    ] = 256
    max_logprobs: Annotated[
        int,
        Option(
            _GROUP, "largest number of alternatives per token in logprobs", "N", least=0, most=LOGPROBS_LIMIT
        ),
    ] = 20
