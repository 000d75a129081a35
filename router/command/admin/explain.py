"""The output of `router explain` for a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_REASONS = {
    "budget": "the step's token budget was used up",
    "pages": "there were no free KV pages",
    "slots": "--max-running-requests were running",
    "policy": "the policy admitted others first",
    "transfer": "KV had to arrive first",
    "adapter": "its adapter was being loaded, or running requests used all --max-loras slots",
    "promotion": "KV had to come up from a tier",
    "pull": "KV had to come from another worker's cache",
}
_STAGES = {
    "router": "in the router, not sent to a worker",
    "queue": "in the queue of {worker}",
    "prefill": "{worker} computes the prompt, {computed} tokens so far",
    "reserve": "the prompt is computed; {worker} has to reserve pages",
    "transfer": "the prompt is computed; its KV is being transferred to {worker}",
    "decode": "{worker} decodes, {output} tokens so far",
    "preempted": "preempted, in the queue of {worker} again, {output} tokens so far",
}
_NOW = {
    ("router", "pages"): "no decode worker has room for the prompt",
    ("router", "workers"): "no worker is ready",
    ("router", "retry"): "an attempt failed and is retried",
    ("queue", "budget"): "the token budget of each step is used up by requests before it",
    ("queue", "pages"): "there are no free KV pages",
    ("queue", "slots"): "--max-running-requests are running",
    ("queue", "policy"): "the policy admits others first",
    ("queue", "adapter"): "its adapter is being loaded, or running requests use all --max-loras slots",
    ("reserve", "pages"): "it has no free KV pages",
    ("preempted", "budget"): "the token budget of each step is used up by requests before it",
    ("preempted", "pages"): "there are no free KV pages",
    ("preempted", "slots"): "--max-running-requests are running",
    ("preempted", "policy"): "the policy admits others first",
    ("transfer", "transfer"): "pages have to arrive and be verified",
}


_PREEMPTIONS = {
    "pages": "running requests needed its KV pages",
    "policy": "a request of higher priority took its place",
}
_PAUSES = {
    "commands": "commands between two engine steps took long",
    "plan": "the scheduler took long to plan a step",
    "batch": "the host took long to prepare a step",
    "encode": "the vision model encoded images",
    "launch": "the host took long to launch a step",
    "device": "the device took long to compute a step",
    "results": "the host took long to take the results of a step",
    "send": "the worker took long to send the tokens",
    "handoff": "the engine was busy with handoffs of KV",
    "copies": "the engine was busy with copies from and to KV tiers",
    "gc": "Python's garbage collector ran on the worker",
    "compile": "a kernel was compiled at its first use",
    "allocation": "the driver allocated or freed memory",
    "lock": "another thread of the worker held the interpreter lock",
    "cpu": "the engine thread waited for a CPU core",
    "stopped": "the worker's process did not run",
    "work": "the step had that much work",
    "retry": "the attempt failed, and another worker continued",
    "moved": "another worker continued the answer",
    "preempted": "it was preempted",
    "transfer": "its KV went to the decode worker",
    "router": "the router was busy",
    "network": "the events were late on their way to the router",
    "unknown": "no cause was recorded",
}
_MOVES = {"drain": "the previous worker was being drained"}


def explained(request: Mapping[str, Any]) -> Iterator[str]:
    """Lines of text: where the request was computed, and what it waited for."""
    outcome = request["outcome"] + (f" ({request['message']})" if request["message"] else "")
    preposition = "for" if request["outcome"] == "running" else "after"
    name = request["request"] + (f" ({request['client_request']})" if request["client_request"] else "")
    yield (
        f"{name}: {outcome} {preposition} {_s(request['seconds'])};"
        f" {request['prompt_tokens']} prompt tokens ({request['cached_tokens']} cached),"
        f" priority {request['priority']}, client {request['client']}"
        + (f", model {request['model']}" if "model" in request else "")
    )
    completions = request["completions"]
    for index, completion in enumerate(completions):
        if len(completions) > 1:
            yield f"completion {index}:"
        if "now" in completion:
            lines = _of_unfinished(completion, completion["now"], "now", "so far")
        elif "ended_in" in completion:
            lines = _of_unfinished(completion, completion["ended_in"], "at the end", "until then")
        else:
            lines = _of_completion(completion)
        yield from (f"  {line}" for line in lines)


def _of_unfinished(
    completion: Mapping[str, Any], now: Mapping[str, Any], when: str, passed_when: str
) -> Iterator[str]:
    """`now`: its status, as of `when`."""
    worker, reason = now["worker"], now["waits_for"]
    yield f"{when}: " + _STAGES[now["stage"]].format(
        worker=worker, computed=now["computed_tokens"], output=completion["output_tokens"]
    )
    if reason:
        yield f"waits for {reason}: {_NOW.get((now['stage'], reason)) or _REASONS.get(reason, reason)}"
    yield from _preemptions(completion)
    yield from _pauses(completion)
    passed = f"queue {_s(completion['queue_s'])}, prefill {_s(completion['prefill_s'])}"
    if now["stage"] in ("reserve", "transfer", "decode", "preempted"):
        passed += f", {_s(completion['e2e_s'] - completion['ttft_s'])} since the first token"
    yield f"{passed_when}: {passed}"


def _of_completion(completion: Mapping[str, Any]) -> Iterator[str]:
    if "ttft_s" not in completion:
        yield f"{completion['output_tokens']} tokens; it did not finish"
        return
    prefill, decode = completion["prefill_worker"], completion["decode_worker"]
    where = prefill if prefill == decode else f"{prefill} -> {decode}"
    yield f"{where}: {completion['placement']}"
    yield _result(completion)
    yield f"queue {_s(completion['queue_s'])}"
    for reason, seconds in sorted(completion["waited"].items(), key=lambda item: -item[1]):
        yield f"  {reason} {_s(seconds)}: {_REASONS.get(reason, reason)}"
    yield f"prefill {_s(completion['prefill_s'])}{_chunks(completion['chunks'])}"
    if encodes := completion.get("encodes"):
        by = completion.get("encode_worker") or prefill
        yield f"encode {_s(completion['encode_s'])} by {by}, images of {_lengths(encodes)} tokens"
    if rows := completion.get("row_transfers"):
        last = max(span["end_s"] for span in rows)
        yield f"rows of {len(rows)} images came from there, the last {_s(last)} after the request"
    if prefill != decode:
        yield f"reserve {_s(completion['reserve_s'])} more for pages of {decode}"
        yield f"transfer {_s(completion['transfer_s'])} more, in {len(completion['pushes'])} pushes"
        yield f"first decode {_s(completion['first_decode_s'])}"
    if promoted := completion.get("promoted"):
        yield "cached KV came from: " + ", ".join(f"{where} ({n} tokens)" for where, n in promoted.items())
    if loads := completion.get("adapter_loads"):
        yield "adapter loaded by: " + ", ".join(f"{worker} in {_s(s)}" for worker, s in loads.items())
    if drafted := completion.get("drafted_tokens"):
        yield f"drafts: {completion['accepted_tokens']} of {drafted} tokens were right"
    yield from _preemptions(completion)
    yield from _pauses(completion)
    for move in completion.get("moves", ()):
        why = _MOVES.get(move["reason"], move["reason"])
        yield f"moved to {move['worker']} after {_s(move['at_s'])}: {why}"


def _result(completion: Mapping[str, Any]) -> str:
    if read_s := completion.get("read_s"):
        return f"read: its numbers came after {_s(read_s)}, without a token"
    tokens = completion["output_tokens"]
    return f"TTFT {_s(completion['ttft_s'])}, E2E {_s(completion['e2e_s'])}, {tokens} output tokens"


def _preemptions(completion: Mapping[str, Any]) -> Iterator[str]:
    """One line per preemption: when, for how long and why."""
    preemptions = completion.get("preemptions", ())
    for number, preemption in enumerate(preemptions, 1):
        waits = completion["e2e_s"] - preemption["at_s"]
        waited = (
            f"waited {_s(preemption['waited_s'])}" if preemption["waited_s"] else f"waits for {_s(waits)}"
        )
        times = f" ({number} of {len(preemptions)})" if len(preemptions) > 1 else ""
        yield (
            f"preempted{times} by {preemption['worker']} after {_s(preemption['at_s'])}, {waited}:"
            f" {_PREEMPTIONS.get(preemption['reason'], preemption['reason'])}"
        )


def _pauses(completion: Mapping[str, Any]) -> Iterator[str]:
    """One line per pause: when, for how long and why, with the parts of a slow step."""
    for pause in completion.get("pauses", ()):
        parts = sorted(pause["parts"].items(), key=lambda part: -part[1])
        longest = ", ".join(f"{part} {_s(seconds)}" for part, seconds in parts if seconds >= 0.001)
        yield (
            f"paused for {_s(pause['seconds'])} after {_s(pause['at_s'] - pause['seconds'])}, by"
            f" {pause['worker']}: {_PAUSES.get(pause['cause'], pause['cause'])}"
            + (f" ({longest})" if longest else "")
        )


def _chunks(chunks: Sequence[Mapping[str, Any]]) -> str:
    return f", chunks of {_lengths(chunks)} tokens" if chunks else ""


def _lengths(spans: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{span['tokens']:g}" for span in spans)


def _s(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
