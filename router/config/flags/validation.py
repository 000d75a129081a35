"""Checks a configuration before anything is started: pure functions, one message per problem.

A message names the flag, the value, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from ipaddress import ip_network
from itertools import combinations
from typing import Final

from common.ports import PortRange
from engine.kv.tiers.object_url import ObjectUrl
from router.config.choices import Device, Dtype, Mode, TransportChoice
from router.config.flags.media_settings import complaints as media_complaints
from router.config.flags.scheduling_checks import batching_problems, scheduling_problems
from router.config.flags.text_settings import (
    RerankerOverrides,
    WrongAdapters,
    WrongBounds,
    WrongEnvironment,
    WrongOverrides,
    adapters_of,
    bounds_of,
    environment_of,
    is_origin,
    origins_of,
)
from router.config.option import flag_name
from router.config.settings import RouterConfig
from router.config.table import SETTINGS

_MAX_PAGE_SIZE: Final = 1024
_PORTS: Final = range(65536)
_HEARTBEAT_S: Final = 0.2


def problems_of(config: RouterConfig) -> list[str]:
    return [problem for check in _CHECKS for problem in check(config)]


def _ranges(config: RouterConfig) -> Iterator[str]:
    """Numbers out of the range that the declaration of their setting has."""
    for setting in SETTINGS.values():
        value = setting.of(config)
        if isinstance(value, (int, float)) and not setting.option.in_range(value):
            text = f"{value:g}" if isinstance(value, float) else str(value)
            yield f"{setting.flag} {text}: use {setting.option.range}"


def _model(config: RouterConfig) -> Iterator[str]:
    if not config.model:
        yield "--model is missing; try `--model smollm2`, a Hugging Face folder, a .gguf file or a hub id"
    if config.load_format not in ("auto", "dummy"):
        yield f"--load-format {config.load_format} is unknown; use auto or dummy"
    if config.device is Device.CPU and config.dtype is Dtype.FLOAT16:
        yield "--dtype float16 is slow and inexact with --device cpu; use float32 or bfloat16"
    try:
        RerankerOverrides.of(config.hf_overrides)
    except WrongOverrides as error:
        yield f"--hf-overrides: {error}"


def _workers(config: RouterConfig) -> Iterator[str]:
    cluster = config.cluster
    if config.mode is Mode.MIXED and config.prefill_workers:
        yield (
            f"--prefill-workers {config.prefill_workers} means nothing in --mode mixed, where decode workers"
            " prefill; leave it out, or use --mode disagg"
        )
    if config.uses_handoffs and config.num_prefill_workers < 1:
        yield (
            f"--prefill-workers {config.prefill_workers} leaves no worker to prefill in --mode"
            f" {config.mode.value};"
            " use 1 or more, or --mode mixed"
        )
    if cluster.worker_network is not None:
        yield from _network(cluster.worker_network)
    yield from _nodes(config)
    if cluster.worker_ports is not None:
        try:
            PortRange.parse(cluster.worker_ports)
        except ValueError as error:
            yield f"--worker-ports {error}"
    try:
        environment_of(cluster.worker_env)
    except WrongEnvironment as error:
        yield f"--worker-env {error}"


def _media(config: RouterConfig) -> Iterator[str]:
    yield from media_complaints(config.media)


def _autoscale(config: RouterConfig) -> Iterator[str]:
    try:
        bounds = bounds_of(config.cluster.autoscale)
    except WrongBounds as error:
        yield f"--autoscale {error}"
        return
    counts = {"prefill": config.num_prefill_workers, "decode": config.decode_workers}
    for role, own in bounds.items():
        count = counts[role]
        if not count:
            yield f"--autoscale {role}: there are no {role} workers in --mode {config.mode.value}"
        elif not own.least <= count <= own.most:
            yield (
                f"--{role}-workers {count} at the start is outside of --autoscale"
                f" {role}={own.least}:{own.most}"
            )


def _nodes(config: RouterConfig) -> Iterator[str]:
    nodes = config.cluster.wait_for_nodes
    if nodes is None:
        return
    if config.cluster.ray_address is None:
        yield f"--wait-for-nodes {nodes} means nothing without --ray-address: a local Ray is one node"


def _ranks(config: RouterConfig) -> Iterator[str]:
    for flag, value in config.everywhere("tensor_parallel_size"):
        if value < 1:
            yield f"{flag} {value}: use 1 (a worker is one process), or 2 or 4 to share a model"
    yield from dict.fromkeys(_expert_groups(config))
    for flag, value in config.everywhere("accelerator"):
        if config.device is Device.CPU:
            yield f"{flag} {value} names a GPU, but --device is cpu; leave one of them out"


def _expert_groups(config: RouterConfig) -> Iterator[str]:
    for prefill in (True, False):
        ranks, groups = config.ranks(prefill=prefill), config.for_role(prefill=prefill).expert_parallel_size
        if groups < 1 or ranks % groups:
            flag = config.flag_for("expert_parallel_size", prefill=prefill)
            size = config.flag_for("tensor_parallel_size", prefill=prefill)
            yield f"{flag} {groups} does not divide {size} {ranks}; use 1, or a divisor of it"


def _roles(config: RouterConfig) -> Iterator[str]:
    if config.mode is Mode.MIXED:
        for name, value in config.roles.of("prefill").items():
            yield (
                f"{flag_name(f'prefill_{name}')} {value} means nothing in --mode mixed, where decode workers"
                f" prefill; use {flag_name(name)}"
            )


def _network(network: str) -> Iterator[str]:
    try:
        ip_network(network)
    except ValueError as error:
        yield f"--worker-network {network}: {error}; use a network such as 10.1.0.0/16"


def _frontends(config: RouterConfig) -> Iterator[str]:
    ports = {
        "http_port": config.frontend.http_port,
        "grpc_port": config.frontend.grpc_port,
    }
    if config.operation.admin_port is not None or config.frontend.http_port in _PORTS:
        ports["admin_port"] = config.effective_admin_port
    for name, port in ports.items():
        if port not in _PORTS:
            yield f"{flag_name(name)} {port} is not a port; use 1 to 65535, or 0 for any free one"
    for one, other in combinations(ports, 2):
        if ports[one] == ports[other] != 0:
            yield f"{flag_name(one)} and {flag_name(other)} are both {ports[one]}; they need a port each"


def _kv_events(config: RouterConfig) -> Iterator[str]:
    operation = config.operation
    if operation.kv_events is None:
        for name in ("kv_events_replay", "kv_events_topic"):
            if (value := getattr(operation, name)) is not None:
                yield f"{flag_name(name)} {value} means nothing without --kv-events"
        return
    for name in ("kv_events", "kv_events_replay"):
        endpoint = getattr(operation, name)
        if endpoint is not None and not endpoint.startswith(("tcp://", "ipc://")):
            yield f"{flag_name(name)} {endpoint} is no endpoint of ZeroMQ; use one such as tcp://*:5557"
    if operation.kv_events == operation.kv_events_replay:
        yield f"--kv-events and --kv-events-replay are both {operation.kv_events}; they need a port each"
    if config.frontend.frontends > 1:
        yield (
            f"--kv-events {operation.kv_events} is for one process, but --frontends is"
            f" {config.frontend.frontends}: each knows the tokens of its own requests only; leave one out"
        )
    if config.disable_radix_cache:
        yield (
            f"--kv-events {operation.kv_events} means nothing with --disable-radix-cache: no KV is cached;"
            " leave one of them out"
        )
    if find_spec("zmq") is None:
        yield (
            f"--kv-events {operation.kv_events} needs a package; in a checkout of Baton:"
            " pip install '.[kv-events]'"
        )


def _security(config: RouterConfig) -> Iterator[str]:
    access = config.access
    if (access.tls_cert is None) != (access.tls_key is None):
        yield "--tls-cert and --tls-key go together; give both, or neither"
    if access.max_requests_per_key is not None and access.api_key_file is None:
        yield f"--max-requests-per-key {access.max_requests_per_key} means nothing without --api-key-file"
    elif access.max_requests_per_key is not None:
        limit, frontends = access.max_requests_per_key, config.frontend.frontends
        if limit < frontends:
            yield (
                f"--max-requests-per-key {limit} is less than --frontends {frontends}, each of which admits a"
                f" request of a key; use {frontends} or more, or fewer front ends"
            )
    if access.separate_tenants and access.api_key_file is None:
        yield "--separate-tenants means nothing without --api-key-file, whose keys distinguish tenants"
    for origin in origins_of(access.cors_origins):
        if not is_origin(origin):
            yield (
                f"--cors-origins {origin} is not an origin; use scheme, host and port as the browser's"
                " Origin header has them, such as https://chat.example.com, or *"
            )


def _memory(config: RouterConfig) -> Iterator[str]:
    if not 1 <= config.page_size <= _MAX_PAGE_SIZE:
        yield f"--page-size {config.page_size} is out of range; use 1 to {_MAX_PAGE_SIZE}, such as 16"
        return
    if config.kv_pool_tokens is not None and config.kv_memory_fraction is not None:
        yield (
            f"--kv-pool-tokens {config.kv_pool_tokens} and --kv-memory-fraction {config.kv_memory_fraction}"
            " both size the KV pool; give one of them"
        )
    for role in ("prefill", "decode"):
        if {"kv_pool_tokens", "kv_memory_fraction"} <= config.roles.of(role).keys():
            yield (
                f"--{role}-kv-pool-tokens and --{role}-kv-memory-fraction both size the KV pool; give one of"
                " them"
            )
    for flag, fraction in config.everywhere("kv_memory_fraction"):
        if not 0 < fraction < 1:
            yield f"{flag} {fraction} is not between 0 and 1; try 0.9"
    for flag, tokens in config.everywhere("kv_pool_tokens"):
        if tokens < config.page_size:
            yield (
                f"{flag} {tokens} cannot hold a page of --page-size {config.page_size} tokens; raise the one"
                " or lower the other"
            )


def _tiers(config: RouterConfig) -> Iterator[str]:
    if config.disk_kv_dir is not None and config.host_kv_gb == 0:
        yield (
            f"--disk-kv-dir {config.disk_kv_dir} needs --host-kv-gb, since KV passes through host memory;"
            " set it to 1 or more"
        )
    if config.object_kv_url is not None:
        yield from _object_store(config, config.object_kv_url)
    if config.host_kv_gb > 0 and config.disable_radix_cache:
        yield (
            f"--host-kv-gb {config.host_kv_gb:g} means nothing with --disable-radix-cache: no KV is cached;"
            " leave one of them out"
        )
    if not 0 <= config.retained_kv_share <= 1:
        yield f"--retained-kv-share {config.retained_kv_share:g} is not between 0 and 1; try 0.25"


def _object_store(config: RouterConfig, url: str) -> Iterator[str]:
    if config.host_kv_gb == 0:
        yield (
            f"--object-kv-url {url} needs --host-kv-gb, since KV passes through host memory; set it to 1 or"
            " more"
        )
    if config.disk_kv_dir is not None:
        yield (
            f"--object-kv-url {url} and --disk-kv-dir {config.disk_kv_dir} are the same tier; give one of"
            " them"
        )
    try:
        ObjectUrl.parse(url)
    except ValueError as error:
        yield f"--object-kv-url {url}: {error}"
    if find_spec("boto3") is None:
        yield f"--object-kv-url {url} needs boto3; in a checkout of Baton: pip install '.[object-kv]'"


def _handoff(config: RouterConfig) -> Iterator[str]:
    if config.pull_kv and config.disable_radix_cache:
        yield "--pull-kv means nothing with --disable-radix-cache: no KV is cached; leave one of them out"
    if config.has_transport and config.kv_transport is TransportChoice.LOOPBACK:
        yield (
            "--kv-transport loopback stays within one process, and workers are processes of their own;"
            " use nixl or ucxx"
        )


def _heartbeats(config: RouterConfig) -> Iterator[str]:
    timeout = config.failover.worker_timeout
    if 0 < timeout < 2 * _HEARTBEAT_S:
        yield (
            f"--worker-timeout {timeout:g} is less than two heartbeats of a healthy worker;"
            f" use {2 * _HEARTBEAT_S:g} or more"
        )


def _adapters(config: RouterConfig) -> Iterator[str]:
    adapters = config.adapters
    try:
        models = tuple(dict.fromkeys(filter(None, (config.served_model_name, config.model))))
        if adapters_of(adapters.lora_modules, models) and not adapters.enable_lora:
            yield "--lora-modules needs --enable-lora"
    except WrongAdapters as error:
        yield f"--lora-modules {error}"
    if adapters.max_cpu_loras < adapters.max_loras:
        yield f"--max-cpu-loras {adapters.max_cpu_loras}: use --max-loras ({adapters.max_loras}) or more"


_CHECKS: Final[tuple[Callable[[RouterConfig], Iterator[str]], ...]] = (
    _ranges,
    _model,
    _workers,
    _media,
    _autoscale,
    _ranks,
    _roles,
    _frontends,
    _kv_events,
    _security,
    _memory,
    _tiers,
    _adapters,
    batching_problems,
    scheduling_problems,
    _handoff,
    _heartbeats,
)
