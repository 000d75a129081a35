"""Installs the programs of `environments/`, each list in a virtual environment of its own.

`python tests/clients/install.py FOLDER`. A first line `# python >= 3.12` asks for a newer Python than this;
without one, the environment is left out, and its tests are skipped with that reason. A first line
`# with the packages of .venv` lets programs there import Baton, from this checkout. A line that begins with
`# without dependencies` installs the named packages alone.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

LISTS = Path(__file__).parent / "environments"
CHECKOUT = Path(__file__).parents[2] / ".venv"


def interpreter(requirements: str) -> str | Path | None:
    """A Python that is new enough; None if there is none."""
    if sees_checkout(requirements):
        return CHECKOUT / "bin" / "python"
    found = re.match(r"# python >= 3\.(\d+)", requirements)
    if found is None or sys.version_info >= (3, int(found[1])):
        return sys.executable
    names = (f"python3.{minor}" for minor in range(int(found[1]), 20))
    return next(filter(starts, filter(None, map(shutil.which, names))), None)


def sees_checkout(requirements: str) -> bool:
    return requirements.startswith("# with the packages of .venv")


def show_checkout(environment: Path) -> None:
    """Packages of the environment come before those of the checkout."""
    (own,), (packages,) = (root.glob("lib/python3*/site-packages") for root in (environment, CHECKOUT))
    (own / "checkout.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n")


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
        if sees_checkout(path.read_text()):
            show_checkout(environment)
        pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--requirement", path]
        if "# without dependencies" in path.read_text():
            pip.append("--no-deps")
        subprocess.run(pip, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
