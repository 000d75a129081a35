"""What to use in place of routes and fields that are not served, most of them those of other servers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from router.api.endpoints.record import Api
from router.api.fields import Refused

_ADVICE: Final = {
    "Use POST /v1/completions or /v1/chat/completions.": ("/invocations /api/generate /api/chat /v1/engines"),
    "Use POST /detokenize; answers in tokens have the text with /generate.": (
        "/v1/chat/completions/derender /v1/completions/derender"
    ),
    "Use GET /v1/models.": "/get_model_info /model_info /api/tags /models/info",
    "Use GET /v1/models, /version and /status.": "/get_server_info /get_internal_state",
    "Use GET /metrics; GET /status has each worker's load.": "/load /get_load /v1/loads",
    "Use POST /reset_prefix_cache.": "/reset_mm_cache /reset_encoder_cache",
    "There is no profiler; ask for `timings` in a request, or use `router explain REQUEST`.": (
        "/start_profile /stop_profile"
    ),
    "Save the adapter to a folder that the workers read, and use POST /v1/load_lora_adapter.": (
        "/load_lora_adapter_from_tensors"
    ),
    "Weights come as tensors, or from a folder; use POST /update_weights_from_tensor or …_from_disk.": (
        "/update_weights_from_distributed /update_weights_from_ipc /init_weights_update_group /collective_rpc"
    ),
    "Use `router drain` and `router scale` on the router's machine.": "/scale_elastic_ep",
    "Use GET /health; idle workers are probed (--probe-interval).": "/health_generate",
    "GET /openapi.json describes the API.": "/docs /redoc",
    "Use `router batch` for files of requests.": "/v1/batches /v1/files",
    "Models take text and images, and write text.": (
        "/v1/audio/transcriptions /v1/audio/translations /v1/audio/speech /v1/images/generations /v1/realtime"
    ),
}
ADVICE: Final = {path: advice for advice, paths in _ADVICE.items() for path in paths.split()}
"""Advice by the path of the request."""


def advice_on_field(name: str, apis: Iterable[Api]) -> str:
    """Where a field is supported, or why it is not; empty if no API has it."""
    for endpoint in (endpoint for api in apis for endpoint in api.endpoints):
        if endpoint.body is None or (field := endpoint.body.model_fields.get(name)) is None:
            continue
        for mark in field.metadata:
            if isinstance(mark, Refused):
                return f" POST {endpoint.path} refuses it too: {mark.reason}."
        return f" It is a field of POST {endpoint.path}."
    return ""


def advice_on(path: str, served: Iterable[str]) -> str:
    """What to use in place of `path`; empty if that is not known. `served`: paths of this server."""
    if advice := ADVICE.get(path):
        return f" {advice}"
    meant = [known for known in served if known != "/" and path.endswith(known.removeprefix("/v1"))]
    return f" Did you mean {max(meant, key=len)}?" if meant else ""
