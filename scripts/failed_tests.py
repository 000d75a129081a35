"""List the tests that failed in the latest run of pytest; fail if there are none or too many to repeat."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

_CACHE = Path(".pytest_cache/v/cache/lastfailed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at-most", type=int, default=5)
    most = parser.parse_args().at_most
    failed = sorted(json.loads(_CACHE.read_text())) if _CACHE.exists() else []
    if not failed:
        sys.exit("no test failed, so the run ended for another reason")
    print(f"{len(failed)} tests failed:", *failed, sep="\n  ")
    if len(failed) > most:
        sys.exit(f"more than {most}: they are not tried again")


if __name__ == "__main__":
    main()
