"""Settings of a router from the arguments of `ray.serve.llm`: the part that means the same here. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from router.config.flags.command_line import configs_of
from router.config.flags.values import ConfigError

_CONFIGS: Final = "llm_configs"
_SERVES: Final = (
    *("host", "http-port", "grpc-port", "admin-port", "frontends", "http-keep-alive"),
    *("tls-cert", "tls-key", "ray-address"),
)
"""Settings of what Serve does: it listens, and runs in a Ray."""


def settings_of(args: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a `--config` file. Raises ValueError, which names what is wrong."""
    settings = {str(name).replace("_", "-"): value for name, value in args.items() if name != _CONFIGS}
    if _CONFIGS in args:
        settings["models"] = dict(_model(config) for config in args[_CONFIGS])
    for name in _SERVES:
        if name in settings:
            raise ValueError(f"{name} is not a setting under Ray Serve, which listens and has its own Ray")
    try:
        configs_of({**settings, "ray-address": "auto"})
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return settings


def _model(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and settings of one `LLMConfig`."""
    loading = config.get("model_loading_config", {})
    name = loading.get("model_id")
    if not name:
        raise ValueError(f"{_CONFIGS}: model_loading_config.model_id is missing")
    settings: dict[str, Any] = {"model": loading.get("model_source") or name}
    _refuse_others(f"{name}: model_loading_config", loading, ("model_id", "model_source"))
    for field, value in config.items():
        if field == "model_loading_config":
            continue
        if field not in _FIELDS:
            known = ", ".join(("model_loading_config", *_FIELDS))
            raise ValueError(f"{_CONFIGS}: {name}: {field} is not supported; Baton takes {known}")
        settings |= _FIELDS[field](name, value)
    return name, settings


def _engine(name: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by the names of Baton or of vLLM."""
    return dict(kwargs)


def _accelerator(name: str, kind: str | None) -> dict[str, Any]:
    return {} if kind is None else {"accelerator": kind}


def _deployment(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Replicas of a model are its decode workers, which in mixed mode do everything."""
    where = f"{name}: deployment_config"
    _refuse_others(where, options, ("num_replicas", "autoscaling_config"))
    if (bounds := options.get("autoscaling_config")) is None:
        return {"decode-workers": options["num_replicas"]} if "num_replicas" in options else {}
    _refuse_others(
        f"{where}.autoscaling_config", bounds, ("min_replicas", "max_replicas", "initial_replicas")
    )
    least, most = bounds.get("min_replicas", 1), bounds.get("max_replicas", 1)
    first = bounds.get("initial_replicas", max(least, 1))
    return {"decode-workers": first, "autoscale": f"decode={least}:{most}"}


_FIELDS: Final[Mapping[str, Callable[[str, Any], dict[str, Any]]]] = {
    "engine_kwargs": _engine,
    "accelerator_type": _accelerator,
    "deployment_config": _deployment,
}


def _refuse_others(where: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    for field in given:
        if field not in known:
            raise ValueError(f"{_CONFIGS}: {where}.{field} is not supported; Baton takes {', '.join(known)}")
