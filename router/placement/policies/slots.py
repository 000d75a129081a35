"""Slots: a worker computes at most `max_running` requests at a time, prompts and answers alike.

All waits for a slot come before the first token. A request waits on the worker that computes its prompt, and
the router sends KV only to a worker with a free slot: in disaggregated mode it holds the request back until
there is one, in adaptive mode the request queues with its prompt where its answer will be decoded.
"""

from __future__ import annotations

from router.placement.view import WorkerView


def running_answers(worker: WorkerView, more: int = 0, more_tokens: int = 0) -> tuple[int, float]:
    """Decodes that a step has, and their context tokens, with all answers of the worker and `more` others.

    Counts those whose prompts are still to be computed; at most `max_running`.
    """
    answers = worker.answers + more
    context = float(worker.context_tokens + worker.incoming_tokens + more_tokens)
    if worker.max_running is None or answers <= worker.max_running:
        return answers, context
    return worker.max_running, context * worker.max_running / answers


def slot_wait(worker: WorkerView, tpot_s: float, output_tokens: float) -> float:
    """Seconds until a further request gets a slot there, behind all that need one.

    `tpot_s`, `output_tokens`: of the answers there, on average. Slots become free at a steady rate.
    """
    if worker.max_running is None:
        return 0.0
    behind = worker.answers + 1 - worker.max_running
    return max(0, behind) * output_tokens * tpot_s / worker.max_running
