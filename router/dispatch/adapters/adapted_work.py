"""The adapter that a request is computed with, and the origin that its KV has by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from common.origin import activation_key, last_invocation, namespace_of
from common.token_array import token_array
from router.dispatch.workers.worker_adapters import WorkerAdapters
from rpc.baton.v1 import worker_pb2


class NamedAdapter(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> bytes: ...
    @property
    def invocation(self) -> Sequence[int]:
        """Tokens that activate it; empty: it is used from the first token on."""
        ...


def fill_origin(
    work: worker_pb2.Work, adapter: NamedAdapter | None = None, *, tenant: str = "", path: str = ""
) -> None:
    """Name the adapter and the KV of a request, whose prompt, media and salt are known.

    The namespace has the digest of an adapter that is used from the first token on. One with invocation
    tokens is used from where they occur last, and changes the key of that position: KV before it is that of
    the base model. Without an occurrence the request is one of the base model, as in PEFT. `tenant`: if
    tenants share no KV. `path`: from where workers load the adapter. O(prompt).
    """
    start, keys = None, work.prompt_keys or work.prompt
    if adapter is not None and adapter.invocation:
        start = last_invocation(keys, adapter.invocation)
        adapter = None if start is None else adapter
    if adapter is not None:
        work.adapter, work.adapter_digest, work.adapter_path = adapter.name, adapter.digest, path
    if adapter is not None and start is not None:
        keyed = token_array(keys)
        keyed[start] = activation_key(adapter.digest, keyed[start])
        work.adapter_start, work.prompt_keys[:] = start, keyed
    in_namespace = b"" if adapter is None or start is not None else adapter.digest
    work.namespace = namespace_of(adapter=in_namespace, tenant=tenant, cache_salt=work.cache_salt)


def load_ahead(work: worker_pb2.Work, adapters: WorkerAdapters) -> worker_pb2.Command | None:
    """For a worker that gets the request later: to load its adapter now; None: it has it, or could not."""
    digest = work.adapter_digest
    if not digest or digest in adapters or not adapters.may_use(digest):
        return None
    adapters.brought(digest)
    load = worker_pb2.LoadAdapterRequest(
        name=work.adapter, path=work.adapter_path, digest=digest, sources=adapters.sources(digest)
    )
    return worker_pb2.Command(load=load)
