"""Counts the product files in which features of a request are named: `python scripts/feature_files.py`.

With a commit as argument it counts there; `--list FEATURE` prints the files. Generated stubs are left out.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PRODUCT: Final = (
    "baton",
    "common",
    "decode_worker",
    "encode_worker",
    "engine",
    "kv_transfer",
    "prefill_worker",
    "proto",
    "router",
    "rpc",
    "simulator",
    "worker",
)
_SUFFIXES: Final = {".py", ".proto", ".js", ".h", ".cpp"}
_STUBS: Final = "rpc/baton/"

FEATURES: Final = {
    "prompt_logprobs": r"prompt_?logprobs",
    "logprob_token_ids": r"logprob_token_?ids|named_logprobs",
    "routed experts": r"(?<!n_)routed_?experts|num_routed",
    "receipts": r"receipt",
    "reads": r"label_?(ids|logprobs)|\bis_read\b(?!\()|ReadPlacement|\(\"read\"\)",
    "retention": r"retention|retain_s\b|RetainedPrefix",
    "cache_salt": r"cache_?salt",
    "weight_versions": r"weight_versions|weights_begin|WeightsBegin",
    "adapters": r"adapter_?(digest|path|start)",
    "priorities": r"\bpriorit(y|ies)\b",
    "deadlines": r"ttft_?deadline",
    "predicted output": r"\bprediction\b|DraftHints",
    "min_p": r"\bmin_p\b",
    "logprobs": r"(?<!prompt_)\blogprobs\b|TokenLogprobs",
    "grammars": r"\bgrammars?\b|Grammar",
    "images": r"\bMediaItems?\b|PromptMedia|ImageSource",
    "several models": r"(?-i:\bModels\b)",
}
"""Patterns of the names that a feature has, in code, comments and strings."""


def texts(commit: str | None = None) -> Iterator[tuple[str, str]]:
    """Path and text of every product file, in the working tree or in a commit."""
    if commit is None:
        paths = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*") if path.is_file()]
        found = ((path.relative_to(ROOT).as_posix(), path.read_bytes) for path in paths)
    else:
        command = ["git", "-C", str(ROOT), "archive", "--format=tar", commit, *PRODUCT]
        packed = subprocess.run(command, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            members = [(file.name, archive.extractfile(file)) for file in archive]
            found = iter([(name, BytesIO(file.read()).read) for name, file in members if file is not None])
    for name, read in found:
        if Path(name).suffix in _SUFFIXES and not name.startswith(_STUBS):
            yield name, read().decode()


def files_of(product: Sequence[tuple[str, str]], feature: str) -> list[str]:
    """Product files that name a feature."""
    pattern = re.compile(FEATURES[feature], re.IGNORECASE)
    return sorted(name for name, text in product if pattern.search(text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", nargs="?", help="count there; default: the working tree")
    parser.add_argument("--list", choices=FEATURES, metavar="FEATURE", help="print the files of one feature")
    asked = parser.parse_args()
    product = list(texts(asked.commit))
    if asked.list is not None:
        print(*files_of(product, asked.list), sep="\n")
        return
    for feature in FEATURES:
        print(f"{feature:18}{len(files_of(product, feature)):4}")


if __name__ == "__main__":
    main()
