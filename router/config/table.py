"""`SETTINGS`: every field of `RouterConfig` and its groups by name, as flags and files see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType
from typing import Any, Final, get_args, get_type_hints

from engine.sched.presets import PRESETS
from router.config.option import OPTION, Option, flag_name
from router.config.settings import RouterConfig


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of RouterConfig or of one of its groups."""

    name: str
    type: type
    """The plain type: int for `int | None`."""
    default: Any
    option: Option
    group: str | None = None
    """The field of RouterConfig that holds the group; None for a field of RouterConfig itself."""

    @property
    def flag(self) -> str:
        return flag_name(self.name)

    def of(self, config: RouterConfig) -> Any:
        return getattr(getattr(config, self.group) if self.group else config, self.name)


def configured(values: Mapping[str, Any]) -> RouterConfig:
    """The configuration with these settings, by name; the others have their defaults or the preset's.

    Raises KeyError for an unknown name.
    """
    own: dict[str, Any] = {}
    of_groups: dict[str, dict[str, Any]] = {}
    preset = values.get("preset", SETTINGS["preset"].default)
    for name, value in {"page_size": PRESETS[preset].page_size, **values}.items():
        group = SETTINGS[name].group
        target = own if group is None else of_groups.setdefault(group, {})
        target[name] = value
    return RouterConfig(**own, **{group: _GROUPS[group](**given) for group, given in of_groups.items()})


def _settings_of(owner: type, group: str | None = None) -> dict[str, Setting]:
    """In the order of their definition, which is that of `--help`."""
    hints = get_type_hints(owner)
    settings: dict[str, Setting] = {}
    for own in fields(owner):
        if own.name in _GROUPS:
            settings |= _settings_of(_GROUPS[own.name], own.name)
            continue
        hint = hints[own.name]
        (plain,) = [kind for kind in get_args(hint) if kind is not NoneType] or [hint]
        settings[own.name] = Setting(own.name, plain, own.default, own.metadata[OPTION], group)
    return settings


_GROUPS: Final[Mapping[str, type]] = {
    name: hint
    for name, hint in get_type_hints(RouterConfig).items()
    if isinstance(hint, type) and is_dataclass(hint)
}
SETTINGS: Final = _settings_of(RouterConfig)
