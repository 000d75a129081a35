"""Parses the environment variables of --worker-env."""

from __future__ import annotations

import re
import shlex
from typing import Final

__all__ = ["WrongEnvironment", "environment_of"]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_RAY: Final = ("CUDA_VISIBLE_DEVICES", "RAY_")
"""Prefixes of names that Ray sets for each worker."""


class WrongEnvironment(ValueError):
    """The message names the part that is wrong and what it should be."""


def environment_of(setting: str | None) -> dict[str, str]:
    """Variables of a list like `KEY=VALUE KEY='two words'`. Raises WrongEnvironment."""
    try:
        words = shlex.split(setting or "")
    except ValueError as error:
        raise WrongEnvironment(f"{setting}: {error}; quote it as in a shell") from None
    environment: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or _NAME.fullmatch(name) is None:
            raise WrongEnvironment(f"{word} is not KEY=VALUE; try 'UCX_NET_DEVICES=mlx5_0:1'")
        if name.startswith(_OF_RAY):
            raise WrongEnvironment(f"{word}: Ray sets {name} for each worker; leave it out")
        if name in environment:
            raise WrongEnvironment(f"{word}: {name} is given twice")
        environment[name] = value
    return environment
