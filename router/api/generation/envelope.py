"""What a request tells the workers besides its prompt and its sampling parameters.

A `worker_pb2.Work` is filled here once from the fields of any API, and checked; generation adds prompt and
sampling parameters, and the dispatcher sends a copy with every attempt.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from engine.config import Policy
from router.api.generation.tenants import CURRENT_TENANT
from router.api.media.prompt import NO_MEDIA, PromptMedia
from router.config.settings import RouterConfig
from router.dispatch.adapters.adapted_work import fill_origin
from router.dispatch.adapters.table import Adapter
from router.errors import InvalidRequest
from router.request_limits import MAX_CACHE_KEY, MAX_CACHE_SALT, MAX_PRIORITY, MAX_RETENTION_S, RequestLimits
from rpc.baton.v1 import router_pb2, worker_pb2


def envelope(
    *,
    priority: int = 0,
    ttft_deadline_s: float = 0.0,
    timeout_s: float = 0.0,
    cache_key: str = "",
    retain_s: float = 0.0,
    cache_salt: str | None = None,
) -> worker_pb2.Work:
    """A request without its prompt; 0, "" and None mean none.

    Raises InvalidRequest for an impossible priority, and for an empty salt.
    """
    if abs(priority) > MAX_PRIORITY:
        raise InvalidRequest(f"priority must be from {-MAX_PRIORITY} to {MAX_PRIORITY}.", param="priority")
    if cache_salt == "":
        raise InvalidRequest(
            "cache_salt must not be empty; leave it out to share prefixes.", param="cache_salt"
        )
    return worker_pb2.Work(
        cache_salt=cache_salt or "",
        priority=priority,
        ttft_deadline_s=ttft_deadline_s,
        timeout_s=timeout_s,
        retention=worker_pb2.Retention(key=cache_key, seconds=retain_s),
    )


_OF_GRPC: Final = inspect.signature(envelope).parameters.keys() & set(
    router_pb2.GenerateRequest.DESCRIPTOR.fields_by_name
)


def of_grpc(request: router_pb2.GenerateRequest, **more: Any) -> worker_pb2.Work:
    """`envelope` with the fields of equal names, and with `more`."""
    fields = request.DESCRIPTOR.fields_by_name
    given: Mapping[str, Any] = {
        name: getattr(request, name)
        for name in _OF_GRPC
        if not fields[name].has_presence or request.HasField(name)
    }
    return envelope(**given, **more)


def limits_of(config: RouterConfig) -> RequestLimits:
    """What a server with these settings allows."""
    return RequestLimits(
        max_prompt_tokens=config.access.max_prompt_tokens,
        max_completions=config.access.max_completions,
        max_logprobs=config.access.max_logprobs,
        priorities=config.scheduling.effective_policy is Policy.PRIORITY,
        ttft_deadlines=config.scheduling.effective_policy is Policy.DEADLINE,
        separate_tenants=config.access.separate_tenants,
        routed_experts=config.enable_return_routed_experts,
        retention=config.retained_kv_share > 0 and not config.disable_radix_cache,
    )


def check(work: worker_pb2.Work, limits: RequestLimits) -> None:
    """Raise InvalidRequest for what the server, or the client's API key, does not allow."""
    if not work.timeout_s >= 0.0:
        raise InvalidRequest(f"timeout must not be negative: {work.timeout_s}.", param="timeout")
    if work.priority and not limits.priorities:
        raise InvalidRequest(
            "priority is not supported by this server (--schedule-policy priority goes by it); leave it"
            " out, or send 0.",
            param="priority",
            code="unsupported_parameter",
        )
    if work.routed_experts and not limits.routed_experts:
        raise InvalidRequest(
            "return_routed_experts needs a server that was started with --enable-return-routed-experts.",
            param="return_routed_experts",
            code="unsupported_parameter",
        )
    CURRENT_TENANT.get().require_priority(work.priority)
    if work.ttft_deadline_s and not limits.ttft_deadlines:
        raise InvalidRequest(
            "ttft_deadline is not supported by this server (--schedule-policy deadline goes by it).",
            param="ttft_deadline",
            code="unsupported_parameter",
        )
    if not work.ttft_deadline_s >= 0.0:
        raise InvalidRequest("ttft_deadline must not be negative.", param="ttft_deadline")
    if len(work.retention.key) > MAX_CACHE_KEY:
        raise InvalidRequest(f"cache_key has more than {MAX_CACHE_KEY} characters.", param="cache_key")
    if len(work.cache_salt) > MAX_CACHE_SALT:
        raise InvalidRequest(f"cache_salt has more than {MAX_CACHE_SALT} characters.", param="cache_salt")
    if not 0.0 <= work.retention.seconds <= MAX_RETENTION_S:
        raise InvalidRequest(f"retain_s must be from 0 to {MAX_RETENTION_S:.0f}.", param="retain_s")


def filled(
    work: worker_pb2.Work,
    prompt: Sequence[int],
    prefixes: Iterable[tuple[int, float]],
    limits: RequestLimits,
    media: PromptMedia = NO_MEDIA,
    adapter: Adapter | None = None,
) -> worker_pb2.Work:
    """A copy with the prompt, for the current tenant. `prefixes`: see `PreparedPrompt.prefixes`. `adapter`:
    that the request is admitted with."""
    tenant = CURRENT_TENANT.get().name
    separate = tenant if limits.separate_tenants else ""
    copy = worker_pb2.Work(
        prompt=prompt,
        prompt_keys=media.keys,
        media=media.items,
        tenant=tenant,
    )
    copy.MergeFrom(work)
    fill_origin(copy, adapter, tenant=separate, path="" if adapter is None else adapter.path)
    for tokens, seconds in prefixes:
        copy.retention.prefixes.add(tokens=tokens, seconds=seconds)
    if not limits.retention or not (copy.retention.seconds or copy.retention.prefixes):
        copy.ClearField("retention")
    return copy
