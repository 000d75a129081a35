"""Settings of access to the APIs: keys, TLS, and the largest request."""

from __future__ import annotations

from dataclasses import dataclass

from router.config.option import Heading
from router.request_limits import LOGPROBS_LIMIT

__all__ = ["AccessSettings"]

_group = Heading("access and limits")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    api_key_file: str | None = _group(
        None,
        "file of API keys, one per line; requests without a valid key are refused (default: no keys)",
        "FILE",
    )
    metrics_key_file: str | None = _group(
        None,
        "file of keys for /metrics, /sd/workers and /status, one per line (default: closed with"
        " --api-key-file, else open)",
        "FILE",
    )
    max_requests_per_key: int | None = _group(
        None, "concurrent completions (prompts × n) per API key (default: no limit)", "N", least=1
    )
    cors_origins: str | None = _group(
        None,
        "comma-separated origins allowed to call the HTTP API from a browser, such as"
        " https://chat.example.com; * allows any (default: none)",
        "ORIGINS",
    )
    tls_cert: str | None = _group(
        None,
        "TLS certificate chain (PEM) of the HTTP and gRPC APIs (default: no TLS)",
        "FILE",
        aliases=("--ssl-certfile", "--tls-cert-path"),
    )
    tls_key: str | None = _group(
        None,
        "private key (PEM, no passphrase) of --tls-cert",
        "FILE",
        aliases=("--ssl-keyfile", "--tls-key-path"),
    )
    max_body_bytes: int = _group(4 << 20, "largest request body", "BYTES", least=1)
    max_prompt_tokens: int | None = _group(
        None, "longest prompt (default: --max-model-len)", "TOKENS", least=1
    )
    max_completions: int = _group(
        256, "largest number of completions (prompts × n) per request", "N", least=1
    )
    max_logprobs: int = _group(
        20, "largest number of alternatives per token in logprobs", "N", least=0, most=LOGPROBS_LIMIT
    )
