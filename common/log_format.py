"""Log lines as text or as JSON. What a line reports as data travels in `extra=data(...)`."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

TEXT: Final = "text"
_FIELD: Final = "baton_data"


def data(**values: Any) -> dict[str, Any]:
    """For the `extra` of a logging call: fields of the JSON line; text lines do not show them."""
    return {_FIELD: values}


def formatter(style: str) -> logging.Formatter:
    """`style`: "text" or "json", which puts every record on one line."""
    return logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s") if style == TEXT else _Json()


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, _FIELD, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
