"""Conversion between protobuf messages and the engine's dataclasses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from functools import cache
from types import NoneType
from typing import Any, Final, get_args, get_origin, get_type_hints

from google.protobuf.message import Message

from common.token_array import token_array
from engine.core.adapters import AdapterInfo
from engine.core.events import StepMeasured
from engine.core.media import MediaItem
from engine.core.output import Output
from engine.core.request import Request, RequestId
from engine.core.sampling_params import FinishReason, SamplingParams, TokenLogprobs
from engine.errors import AdapterRefused, UnservableRequest
from engine.grammar.grammar import Grammar, GrammarKind
from engine.kv.manager.page_audit import GroupPages
from engine.kv.tiers.stats import Tier, TierStats
from engine.loop.pauses.slow_steps import SlowStep
from engine.loop.stats import EngineStats
from engine.speculation.kinds import NO_HINTS, DrafterKind, DraftHints
from kv_transfer import Peer, Ticket
from rpc.baton.v1 import sampling_pb2, worker_pb2

FINISH_REASONS: Final[dict[FinishReason | None, sampling_pb2.FinishReason]] = {
    None: sampling_pb2.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: sampling_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: sampling_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: sampling_pb2.FINISH_REASON_ABORT,
}

_ROWS_A_MESSAGE: Final = 4096
_KINDS: Final = {
    kind.message_type.name: kind.name
    for kind in worker_pb2.Output.DESCRIPTOR.fields
    if kind.message_type is not None
}
"""Kinds of outputs, by the names of their types."""
_UINT64: Final = (1 << 64) - 1

_SCALARS: Final = {field.name for field in fields(SamplingParams)} - {
    "logprob_token_ids",
    "stop_token_ids",
    "logit_bias",
    "grammar",
}

_GRAMMAR_KINDS: Final[dict[int, GrammarKind]] = {
    sampling_pb2.GrammarKind.Value(f"GRAMMAR_KIND_{kind.name}"): kind for kind in GrammarKind
}


def sampling_from_proto(message: sampling_pb2.SamplingParams) -> SamplingParams:
    """Fields of equal names; absent ones have the dataclass's defaults.

    Values are not validated here: the router has done it. Raises InvalidRequest for an unknown kind.
    """
    given = {field.name: value for field, value in message.ListFields()}
    scalars = {name: given[name] for name in given.keys() & _SCALARS}
    return SamplingParams(
        **scalars | {"max_tokens": message.max_tokens, "seed": message.seed & _UINT64},
        logprob_token_ids=tuple(message.logprob_token_ids),
        stop_token_ids=tuple(message.stop_token_ids),
        logit_bias=tuple(sorted(message.logit_bias.items())),
        grammar=_grammar_from_proto(message.grammar) if message.HasField("grammar") else None,
    )


def _grammar_from_proto(message: sampling_pb2.Grammar) -> Grammar:
    kind = _GRAMMAR_KINDS.get(message.kind)
    if kind is None:
        raise UnservableRequest(f"this worker knows no kind of grammar {message.kind}")
    return Grammar(kind, message.text)


def request_from_proto(work: worker_pb2.Work, arrival: float) -> Request:
    """A request that has not been computed yet. Costs O(prompt + output).

    Raises InvalidRequest for what this version of a worker does not know.
    """
    given = _given(work, _OF_WORK)
    special = {"prompt": work.prompt, "sampling": sampling_from_proto(work.sampling)}
    return Request(id=work.request_id, arrival=arrival, hints=_hints(work.sampling), **given | special)


def media_item_from_proto(message: worker_pb2.MediaItem) -> MediaItem:
    """With its arrays."""
    item: MediaItem = _converted(MediaItem, message)
    return item


def prompt_from_proto(message: worker_pb2.Share) -> Request:
    """A request that stands for a prompt and its origin, and is never submitted."""
    return Request(
        message.ticket.handoff_id,
        message.tokens,
        SamplingParams(max_tokens=1),
        namespace=message.namespace,
        prompt_keys=message.keys,
    )


def _given(message: Message, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `kinds` that are set. Messages become dataclasses with fields of equal names."""
    return {
        field.name: _converted(kinds[field.name], value)
        for field, value in message.ListFields()
        if field.name in kinds
    }


def _converted(kind: Any, value: Any) -> Any:
    """`value` as a field of type `kind` has it."""
    inner = next((arg for arg in get_args(kind) if arg is not NoneType), kind)
    if isinstance(value, Message):
        return inner(**_given(value, _kinds(inner)))
    if get_origin(kind) is tuple:
        return tuple(_converted(inner, item) for item in value)
    return list(value) if get_origin(kind) is list else value


@cache
def _kinds(kind: type) -> Mapping[str, Any]:
    """Types of a dataclass's fields."""
    return get_type_hints(kind)


_OF_WORK: Final = {
    name: kind
    for name, kind in get_type_hints(Request).items()
    if name in worker_pb2.Work.DESCRIPTOR.fields_by_name and name not in ("prompt", "sampling")
}
"""Fields that a request has under the names of `Work`; absent ones have the dataclass's defaults."""


def _hints(message: sampling_pb2.SamplingParams) -> DraftHints:
    if not message.HasField("drafts"):
        return NO_HINTS
    drafters = frozenset[DrafterKind]() if message.drafts.off else None
    return DraftHints(token_array(message.drafts.prediction), drafters)


def logprobs_to_proto(logprobs: TokenLogprobs) -> sampling_pb2.TokenLogprobs:
    return sampling_pb2.TokenLogprobs(
        logprob=logprobs.logprob,
        rank=logprobs.rank,
        top_ids=[token for token, _ in logprobs.top],
        top_logprobs=[logprob for _, logprob in logprobs.top],
    )


def outputs_to_proto(request_id: RequestId, output: Output) -> Iterator[worker_pb2.Output]:
    """In messages that a client's default limit of 4 MiB has room for."""
    kind = _KINDS[type(output).__name__]
    for first in range(0, len(output), _ROWS_A_MESSAGE):
        part: Any = output.part(first, first + _ROWS_A_MESSAGE)
        yield worker_pb2.Output(request_id=request_id, **{kind: asdict(part)})


def peer_to_proto(peer: Peer) -> worker_pb2.Peer:
    return worker_pb2.Peer(**asdict(peer))


def ticket_to_proto(ticket: Ticket) -> worker_pb2.Ticket:
    return worker_pb2.Ticket(**_same(Ticket, ticket) | {"receiver": peer_to_proto(ticket.receiver)})


def peer_from_proto(message: worker_pb2.Peer) -> Peer:
    return Peer(**_same(Peer, message))


def ticket_from_proto(message: worker_pb2.Ticket) -> Ticket:
    """Not validated here: `Ticket.require` does it."""
    receiver, pages, state = peer_from_proto(message.receiver), tuple(message.pages), tuple(message.state)
    return Ticket(**_same(Ticket, message) | {"receiver": receiver, "pages": pages, "state": state})


def _same(kind: type[Peer | Ticket], of: Any) -> dict[str, Any]:
    """What `of` has in the fields of `kind`."""
    return {field.name: getattr(of, field.name) for field in fields(kind)}


def load_to_proto(stats: EngineStats) -> worker_pb2.Load:
    return worker_pb2.Load(
        waiting=stats.waiting,
        starved=stats.starved,
        waits_for="" if stats.waits_for is None else stats.waits_for.value,
        running=stats.running,
        waiting_tokens=stats.waiting_tokens,
        free_pages=stats.available_pages,
        total_pages=stats.pages.total,
        quarantined_pages=stats.pages.quarantined,
        adapters=[worker_pb2.AdapterUse(**asdict(use)) for use in stats.adapters],
    )


def adapter_answer(call: Callable[[], AdapterInfo]) -> worker_pb2.AdapterInfo:
    """What `call` returns, or why it refused."""
    try:
        return worker_pb2.AdapterInfo(**asdict(call()))
    except AdapterRefused as error:
        return worker_pb2.AdapterInfo(error=str(error))


def step_work_to_proto(measured: StepMeasured) -> worker_pb2.StepWork:
    return worker_pb2.StepWork(**asdict(measured))


def slow_step_to_proto(slow: SlowStep) -> worker_pb2.SlowStep:
    parts = {part.value: seconds for part, seconds in slow.parts.items()}
    return worker_pb2.SlowStep(
        cause=slow.cause.value, seconds=slow.seconds, expected_s=slow.expected_s, parts=parts
    )


def stats_to_proto(
    stats: EngineStats, groups: Iterable[GroupPages], unexpected_messages: int
) -> worker_pb2.WorkerStats:
    return worker_pb2.WorkerStats(
        load=load_to_proto(stats),
        pages=worker_pb2.PageCounts(**asdict(stats.pages)),
        groups=[worker_pb2.GroupPages(**asdict(kind)) for kind in groups],
        state_slots=None if stats.state_slots is None else worker_pb2.PageCounts(**asdict(stats.state_slots)),
        steps=stats.steps,
        preemptions=stats.preemptions,
        prompt_tokens=stats.prompt_tokens,
        generated_tokens=stats.generated_tokens,
        cache_hit_tokens=stats.cache_hit_tokens,
        unexpected_messages=unexpected_messages,
        tiers=None if stats.tiers is None else _tiers_to_proto(stats.tiers),
        drafts=stats.drafts.drafts,
        drafted_tokens=stats.drafts.drafted,
        accepted_tokens=stats.drafts.accepted,
        accepted_at=stats.drafts.accepted_at,
        retained_blocks=stats.retained_blocks,
        images_encoded=stats.media_encoded,
        image_cache_queries=stats.media_queries,
        image_cache_hits=stats.media_hits,
    )


def _tiers_to_proto(stats: TierStats) -> worker_pb2.KVTiers:
    counts = stats.counts
    down = dict.fromkeys(Tier, counts.saved) | {Tier.HOST: counts.demoted}
    return worker_pb2.KVTiers(
        tiers=[
            worker_pb2.KVTier(
                name=tier.value,
                pages=stats.pages[tier],
                capacity=stats.capacity[tier],
                demoted=down[tier],
                promoted=counts.promoted[tier],
            )
            for tier in Tier
            if stats.capacity[tier]
        ],
        page_bytes=stats.page_bytes,
        dropped=counts.dropped,
        faults={fault.value: number for fault, number in counts.faults.items()},
    )
