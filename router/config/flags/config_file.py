"""The YAML file of settings, which may have several models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

import yaml

from router.config.flags.model_settings import is_of_model, is_usable_name
from router.config.flags.values import ConfigError, NamedSettings, did_you_mean, named_settings
from router.config.option import flag_name
from router.config.settings import RouterConfig
from router.config.table import SETTINGS, Setting

_MODELS: Final = "models"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings by their names in `router.config.table.SETTINGS`."""
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of each of several models, by its name."""


def read_config_file(path: Path) -> ConfigFile:
    """Raises ConfigError."""
    try:
        return config_file_of(_content(path))
    except ConfigError as error:
        raise ConfigError([f"--config {path}: {problem}" for problem in error.problems]) from None


def _content(path: Path) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError([f"{error.strerror}; give a readable YAML file"]) from None
    except yaml.YAMLError as error:
        raise ConfigError([f"it is not YAML: {error}"]) from None
    if content is not None and not isinstance(content, Mapping):
        raise ConfigError(["it must hold settings such as `page-size: 16`"])
    return {str(key): value for key, value in (content or {}).items()}


def config_file_of(content: Mapping[str, Any]) -> ConfigFile:
    """The settings in the content of a file. Raises ConfigError."""
    values = dict(content)
    models = values.pop(_MODELS, {})
    found = named_settings(values)
    problems = list(_problems(found))
    of_models: dict[str, Mapping[str, Any]] = {}
    if not isinstance(models, Mapping) or (_MODELS in content and not models):
        problems.append(f"{_MODELS} must hold names of models, each with its settings")
        models = {}
    for name, value in models.items():
        own = _settings_of_model(str(name), value)
        problems += [f"{_MODELS}: {name}: {problem}" for problem in _problems_of_model(str(name), own)]
        of_models[str(name)] = own.settings
    if problems:
        raise ConfigError(problems)
    return ConfigFile(found.settings, of_models)


def _settings_of_model(name: str, value: object) -> NamedSettings:
    """A text is the model itself: `small: smollm2`."""
    match value:
        case str():
            return named_settings({"model": value})
        case Mapping():
            return named_settings({str(key): setting for key, setting in value.items()})
        case _:
            return NamedSettings(problems=["give a model, or settings such as `model: smollm2`"])


def _problems_of_model(name: str, own: NamedSettings) -> Iterator[str]:
    yield from _problems(own)
    if not is_usable_name(name):
        yield "a name has letters, digits, and . _ - / : only"
    for setting in own.settings:
        if setting == "served_model_name":
            yield f"{flag_name(setting)[2:]}: the name is the one under which the settings stand"
        elif not is_of_model(SETTINGS[setting]):
            yield f"{flag_name(setting)[2:]} is a setting of the router: give it once, for all models"


def _problems(found: NamedSettings) -> Iterator[str]:
    known = [setting.replace("_", "-") for setting in SETTINGS]
    yield from (f"{key} is not a setting{did_you_mean(key, known)}" for key in found.unknown)
    yield from found.problems


def as_file(configs: Sequence[RouterConfig]) -> dict[str, Any]:
    """The content of a file of which `parse_models` reads these configurations."""
    if len(configs) == 1:
        return dict(_written(configs[0], SETTINGS.values()))
    own = [setting for setting in SETTINGS.values() if is_of_model(setting)]
    shared = [setting for setting in SETTINGS.values() if not is_of_model(setting)]
    models = {
        config.served_model_name: dict(
            _written(config, (setting for setting in own if setting.name != "served_model_name"))
        )
        for config in configs
    }
    return {_MODELS: models, **dict(_written(configs[0], shared))}


def _written(config: RouterConfig, settings: Iterable[Setting]) -> Iterator[tuple[str, Any]]:
    for setting in settings:
        value = setting.of(config)
        if value is not None:
            yield flag_name(setting.name)[2:], value.value if isinstance(value, Enum) else value
