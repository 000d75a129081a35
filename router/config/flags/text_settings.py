"""Parses the settings whose text has parts, such as --autoscale, --worker-env and --hf-overrides."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

_BOUNDS: Final = re.compile(r"(prefill|decode)=(\d+):(\d+)")


class WrongBounds(ValueError):
    """The message names the part that is wrong and what it should be."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of the number of workers of a role."""

    least: int
    most: int


def bounds_of(setting: str | None) -> dict[str, Bounds]:
    """Bounds by role, from `decode=1:4 prefill=1:2`; empty without a setting. Raises WrongBounds."""
    bounds: dict[str, Bounds] = {}
    for word in shlex.split(setting or ""):
        match = _BOUNDS.fullmatch(word)
        if match is None:
            raise WrongBounds(f"{word} is not ROLE=LEAST:MOST; try decode=1:4, or 'decode=1:4 prefill=1:2'")
        role, least, most = match[1], int(match[2]), int(match[3])
        if not least <= most or not most:
            raise WrongBounds(f"{word}: the second number is the larger one, and 1 or more")
        if role in bounds:
            raise WrongBounds(f"{word}: {role} is given twice")
        bounds[role] = Bounds(least, most)
    return bounds


class WrongAdapters(ValueError):
    """The message names the part that is wrong and what it should be."""


class _NamedFolder(BaseModel, extra="forbid", strict=True):
    """An adapter as vLLM writes it in JSON."""

    name: str = Field(min_length=1)
    path: str = Field(min_length=1)
    base_model_name: str | None = None


_NAMED_FOLDERS: Final[TypeAdapter[_NamedFolder | list[_NamedFolder]]] = TypeAdapter(
    _NamedFolder | list[_NamedFolder]
)


def adapters_of(setting: str | None, models: Collection[str] = ()) -> dict[str, str]:
    """Paths by names, from `style=/adapters/style sql=/adapters/sql`, or from vLLM's JSON: an object, or a
    list of them. `models`: names that base_model_name may have. Raises WrongAdapters."""
    text = (setting or "").strip()
    adapters: dict[str, str] = {}
    for name, path in _from_json(text, models) if text.startswith(("{", "[")) else _from_words(text):
        if name in adapters:
            raise WrongAdapters(f"{name}={path}: {name} is given twice")
        adapters[name] = path
    return adapters


def _from_words(text: str) -> Iterator[tuple[str, str]]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise WrongAdapters(f"{text}: {error}; quote it as in a shell") from None
    for word in words:
        name, _, path = word.partition("=")
        if not name or not path:
            raise WrongAdapters(f"{word} is not NAME=PATH")
        yield name, path


def _from_json(text: str, models: Collection[str]) -> Iterator[tuple[str, str]]:
    try:
        found = _NAMED_FOLDERS.validate_json(text)
    except ValidationError:
        form = '{"name": NAME, "path": PATH, "base_model_name": MODEL}'
        raise WrongAdapters(f"{text} is not {form}, or a list of such objects") from None
    for one in found if isinstance(found, list) else [found]:
        if models and one.base_model_name is not None and one.base_model_name not in models:
            raise WrongAdapters(
                f"{one.name} is for {one.base_model_name}; this model is {' or '.join(models)}"
            )
        yield one.name, one.path


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


ANY_ORIGIN = "*"


def origins_of(setting: str | None) -> tuple[str, ...]:
    """The origins of a comma-separated list, with scheme and host in lower case, as browsers send them."""
    return tuple(name.strip().lower() for name in (setting or "").split(",") if name.strip())


def is_origin(name: str) -> bool:
    """Whether `name` is "*", or an origin that a browser could send: scheme, host and port only."""
    if name == ANY_ORIGIN:
        return True
    try:
        parts = urlsplit(name)
        port = parts.port
    except ValueError:
        return False
    default = {"http": 80, "https": 443}.get(parts.scheme)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    written = f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "")
    named = bool(parts.hostname) and "*" not in name  # no patterns: origins are compared literally
    return default is not None and named and port != default and name == written


_SOFTMAX: Final = "from_2_way_softmax"
_OVERRIDES: Final = frozenset(
    {"architectures", "classifier_from_token", "method", "is_original_qwen3_reranker"}
)


class WrongOverrides(ValueError):
    """The message names the part that is wrong and what it should be."""


@dataclass(frozen=True, slots=True)
class RerankerOverrides:
    """What --hf-overrides says about a model of text that scores pairs, in vLLM's names."""

    tokens: tuple[str, str] | None = None
    """For irrelevant documents, and for relevant ones."""
    is_qwen3: bool = False

    @classmethod
    def of(cls, setting: str | None) -> RerankerOverrides:
        """Raises WrongOverrides."""
        try:
            given = json.loads(setting or "{}")
        except ValueError as error:
            raise WrongOverrides(f"it is not JSON: {error}") from None
        if not isinstance(given, dict) or given.keys() - _OVERRIDES:
            raise WrongOverrides(
                f"it takes an object with {', '.join(sorted(_OVERRIDES))}; others belong into config.json"
            )
        tokens = given.get("classifier_from_token")
        if given and not (
            isinstance(tokens, list) and len(tokens) == 2 and all(isinstance(t, str) for t in tokens)
        ):
            raise WrongOverrides('classifier_from_token must be two tokens, such as ["no", "yes"]')
        if given.get("method", _SOFTMAX) != _SOFTMAX:
            raise WrongOverrides(f"the method {given['method']!r} is not supported; use {_SOFTMAX}")
        is_qwen3 = bool(given.get("is_original_qwen3_reranker"))
        return cls(None if tokens is None else (tokens[0], tokens[1]), is_qwen3)
