"""Decisions and scores of `LLM`: what is read from the last row of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from baton.generation import OfflineRunner
from router.api.decisions.answers import answers_of, scores_in
from router.api.decisions.asking import NO_THINKING, QuestionForm, all_ids, shares_of, with_question
from router.api.decisions.bodies import DecisionBody
from router.api.generation.params.validation import parse
from router.api.generation.text.tokenizer import Tokenizer
from router.errors import InvalidRequest


def decide(
    runner: OfflineRunner, tokenizer: Tokenizer, body: bytes, template_options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Answers to the questions of a body of `/v1/decisions`. Raises ValueError."""
    try:
        parsed = parse(DecisionBody, body)
        asked = parsed.to_asked("")
        options = NO_THINKING | dict(template_options)
        rendered = tokenizer.render(with_question(asked.messages), options)
        form = QuestionForm.of(rendered, tokenizer, tokenizer.output_formats)
        labels = [form.labels(question) for question in asked.questions]
    except InvalidRequest as error:
        raise ValueError(str(error)) from None
    rests = [form.rest(q, names) for q, names in zip(asked.questions, labels, strict=True)]
    rows = runner.read(tokenizer.encode_after(form.before, rests), all_ids(labels))
    return [dict(answer) for answer in answers_of(parsed.questions, shares_of(labels, rows))]


def score(
    runner: OfflineRunner, prompts: Sequence[Sequence[int]], labels: Sequence[int], *, among_labels: bool
) -> list[list[float]]:
    """Probabilities of these tokens after each prompt. Raises ValueError."""
    if not labels or any(not prompt for prompt in prompts):
        raise ValueError("label_token_ids and every prompt need at least one token.")
    rows = runner.read(prompts, list(dict.fromkeys(labels)))
    return [scores_in(row, labels, among_labels=among_labels) for row in rows]
