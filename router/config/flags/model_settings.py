"""Several models behind one router: which settings each has for itself, and what must differ.

All else is what they share: the front ends, access, operation, and the Ray that they live in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from router.config.option import flag_name
from router.config.settings import RouterConfig
from router.config.table import SETTINGS, Setting

_SHARED_GROUPS: Final = ("access", "frontend", "operation")
_OWN: Final = frozenset(
    (
        "tool_call_parser",
        "reasoning_parser",
        "chat_template",
        "generation_config",
        "kv_events",
        "kv_events_replay",
        "kv_events_topic",
    )
)
"""Settings of these groups that each model has for itself."""
_SHARED: Final = frozenset(("ray_address", "wait_for_nodes"))
_DIFFERENT: Final = ("cluster_name", "kv_events", "kv_events_replay", "disk_kv_dir")
"""Settings that may not be the same for two models."""
_NAME: Final = re.compile(r"[\w./:-]+")


@dataclass(frozen=True, slots=True)
class NamedModel:
    """`--model NAME=PATH`."""

    name: str
    path: str


def named_model(text: str) -> NamedModel | None:
    """None for a model without a name, such as a path that has a `=`."""
    name, equals, path = text.partition("=")
    if not equals or not path or not is_usable_name(name) or Path(text).exists():
        return None
    return NamedModel(name, path)


def is_usable_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_of_model(setting: Setting) -> bool:
    """Whether each of several models has this setting for itself."""
    return setting.name in _OWN or not (setting.group in _SHARED_GROUPS or setting.name in _SHARED)


def settings_of(
    name: str, file: Mapping[str, Any], own: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Settings of one of several models: those of the `file` for all, its `own` there, and `given` flags.

    Its workers have a cluster of their own.
    """
    settings = {**file, **own, **given, "served_model_name": name}
    base = {**file, **given}.get("cluster_name", SETTINGS["cluster_name"].default)
    return {**settings, "cluster_name": own.get("cluster_name", f"{base}.{name}")}


def problems_between(configs: Sequence[RouterConfig]) -> Iterator[str]:
    """Settings that two models share and may not."""
    for setting in (SETTINGS[name] for name in _DIFFERENT):
        users: dict[Any, list[str]] = {}
        for config in configs:
            if (value := setting.of(config)) is not None:
                users.setdefault(value, []).append(config.served_model_name or config.model)
        for value, names in users.items():
            if len(names) > 1:
                yield (
                    f"{flag_name(setting.name)} {value} is that of {' and '.join(names)}; give each its own,"
                    " under `models` in a --config file"
                )
