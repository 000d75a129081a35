"""The editable install that `make setup` makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_baton_is_imported_beside_a_folder_of_its_name(tmp_path: Path) -> None:
    """As in the parent folder of a checkout named baton."""
    (tmp_path / "baton").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(
        [sys.executable, "-c", "import baton; print(baton.__file__)"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(run.stdout.strip()).name == "__init__.py"
