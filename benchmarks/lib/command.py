"""What all benchmarks have in common: a parser that explains the module, and a file of results."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def command(name: str, doc: str | None, **more: Any) -> argparse.ArgumentParser:
    """The parser of `python -m benchmarks.NAME`, whose help is the module's docstring.

    `more`: further arguments of `ArgumentParser`.
    """
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **more,
    )


def save_json(path: Path, content: object, indent: int = 2) -> None:
    """Write results; makes the folder if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=indent) + "\n")
