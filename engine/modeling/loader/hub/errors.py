"""Why a model could not be fetched from the Hugging Face hub, and what to do."""

from __future__ import annotations

from typing import Final

CHOICES: Final = (
    "a model is smollm2, a Hugging Face folder, a .gguf file or a hub id, OWNER/NAME, with GGUF files"
    " OWNER/NAME:QUANTIZATION"
)
_TOKEN: Final = "set HF_TOKEN to a token of"


def reason_of(error: Exception, model: str) -> str:
    """Explain an error of `huggingface_hub`."""
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        IncompleteSnapshotError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    match error:
        case GatedRepoError():
            return f"it is gated: accept its terms at {ENDPOINT}/{model}, and {_TOKEN} that account"
        case RepositoryNotFoundError():
            return f"{ENDPOINT} has no {model}, or it is private: check the name, or {_TOKEN} its owner"
        case HfHubHTTPError():
            status = error.response.status_code
            if status in (401, 403):
                return f"{ENDPOINT} answers {status}: {_TOKEN} an account that may read it"
            return f"{ENDPOINT} answers {status}"
        case OfflineModeIsEnabled():
            return "HF_HUB_OFFLINE is set"
        case LocalEntryNotFoundError():
            cause = error.__cause__
            if isinstance(cause, HfHubHTTPError | OfflineModeIsEnabled):
                return reason_of(cause, model)
            part = "; a part of it is cached" if isinstance(error, IncompleteSnapshotError) else ""
            return f"no network: {ENDPOINT} cannot be reached ({_first_line(cause or error)}){part}"
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
