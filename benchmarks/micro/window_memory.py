"""KV memory of one long request, with the pages behind windows kept and given back. Needs no GPU.

    python -m benchmarks.micro.window_memory --model FOLDER --tokens 131072

FOLDER needs only config.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from common.kv_groups import group_layers, kept_pages
from engine.model_config.model_spec import ModelSpec

_PAGE_SIZE = 16


def held_bytes(spec: ModelSpec, tokens: int, value_bytes: int) -> tuple[int, int]:
    """KV bytes of a request of `tokens` tokens: with every layer's whole context, and in groups."""
    windows = [spec.window(layer) for layer in spec.attention_layers]
    groups = group_layers(windows, tokens)
    layer_bytes = 2 * spec.kv_size * value_bytes * _PAGE_SIZE
    page_bytes = max(len(group.layers) for group in groups) * layer_bytes
    whole = -(-tokens // _PAGE_SIZE) * len(windows) * layer_bytes
    return whole, kept_pages(groups, _PAGE_SIZE, tokens) * page_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, action="append", required=True, metavar="FOLDER")
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--memory-gib", type=float, default=60.0, help="of the pool")
    args = parser.parse_args()
    table = Table("model", "every layer whole", "in groups", "requests that fit, whole", "in groups")
    for folder in args.model:
        held = held_bytes(ModelSpec.from_folder(folder), args.tokens, value_bytes=2)
        fit = [int(args.memory_gib * 2**30 // each) for each in held]
        table.add_row(folder.name, *(f"{each / 2**30:.2f} GiB" for each in held), *map(str, fit))
    Console().print(table)


if __name__ == "__main__":
    main()
