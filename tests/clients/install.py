"""Installs the programs of `environments/`, each list in a virtual environment of its own.

`python tests/clients/install.py FOLDER`. A first line `# python >= 3.12` asks for a newer Python than this;
without one, the environment is left out, and its tests are skipped with that reason.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

LISTS = Path(__file__).parent / "environments"


def interpreter(requirements: str) -> str | None:
    """A Python that is new enough; None if there is none."""
    found = re.match(r"# python >= 3\.(\d+)", requirements)
    if found is None or sys.version_info >= (3, int(found[1])):
        return sys.executable
    names = (f"python3.{minor}" for minor in range(int(found[1]), 20))
    return next(filter(starts, filter(None, map(shutil.which, names))), None)


def starts(python: str) -> bool:
    """Version managers put a name on the path for every version that they know, installed or not."""
    return subprocess.run([python, "--version"], capture_output=True).returncode == 0


def main(folder: Path) -> None:
    for path in sorted(LISTS.glob("*.txt")):
        python = interpreter(path.read_text())
        if python is None:
            print(f"{path.stem}: left out, since it needs {path.read_text().splitlines()[0][2:]}")
            continue
        environment = folder / path.stem
        subprocess.run([python, "-m", "venv", environment], check=True)
        pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--requirement", path]
        subprocess.run(pip, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
