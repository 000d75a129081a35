"""Asks questions about a conversation: renders the state once, and labels the options of each question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from router.api.decisions.questions import LETTERS, PAIRS, YES_NO, OptionShares, Question, QuestionKind
from router.api.decisions.reading import Reading, read, softmax
from router.api.generation.generation import Generation
from router.api.generation.generation_request import Chat
from router.api.generation.output.formats import OutputFormats
from router.api.generation.output.reasoning import TAGS, THINK, ReasoningFormat
from router.errors import InvalidRequest
from rpc.baton.v1 import worker_pb2

_HERE: Final = "\ue000question\ue000"
"""Where a question is put into the rendered conversation."""
NO_THINKING: Final = {"enable_thinking": False, "thinking": False}
"""Variables that turn reasoning off, by the templates of various models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Questions about one conversation."""

    id: str
    messages: Sequence[Mapping[str, Any]]
    """At least one."""
    template_options: Mapping[str, Any]
    questions: Sequence[Question]
    work: worker_pb2.Work
    """What workers are told: see `envelope`."""
    timings: bool = False


async def decide(model: Generation, asked: Asked) -> tuple[list[OptionShares], Reading]:
    """Answer each question by the probabilities of its options' labels. Raises RouterError."""
    before, end = await _rendered(model, asked)
    labels = [_labels(model, end, question) for question in asked.questions]
    texts = [q.asked(tuple(names)) + end for q, names in zip(asked.questions, labels, strict=True)]
    prompts = await model.tokenizer.encode_with_shared(before, texts)
    ids = list(dict.fromkeys(token for names in labels for token in names.values()))
    reading = await read(model, asked.id, prompts, ids, asked.work, timings=asked.timings)
    shares_of = []
    for names, row in zip(labels, reading.rows, strict=True):
        shares_of.append(OptionShares(*softmax([row[token] for token in names.values()])))
    return shares_of, reading


async def _rendered(model: Generation, asked: Asked) -> tuple[str, str]:
    """The prompt before a question, and after it up to where the answer begins, without reasoning."""
    *others, last = asked.messages
    messages: list[Mapping[str, Any]] = list(asked.messages)
    if last["role"] == "user":
        messages = [*others, {**last, "content": f"{last['content'].rstrip()}\n\n{_HERE}"}]
    else:
        messages.append({"role": "user", "content": _HERE})
    model.check_messages(len(messages))
    text = await model.rendered(Chat(messages, NO_THINKING | dict(asked.template_options)))
    before, mark, end = text.partition(_HERE)
    if not mark or _HERE in end:
        raise InvalidRequest("The model's chat template does not show the last message once.", param="input")
    return before, end + _closing(end, model.formats)


def _closing(end: str, formats: OutputFormats) -> str:
    """What ends the reasoning that a prompt with this end would be answered with; empty if there is none."""
    if formats.reasoning is ReasoningFormat.HARMONY:
        return "<|channel|>final<|message|>"
    tags = TAGS.get(formats.reasoning, THINK) if formats.reasoning else THINK
    return f"\n{tags.closing}\n\n" if end.rstrip().endswith(tags.opening) else ""


def _labels(model: Generation, end: str, question: Question) -> dict[str, int]:
    """A token for each option of a question, by the label that it is."""
    number = len(question.options)
    if question.kind is QuestionKind.PREDICATE:
        sets = [YES_NO, LETTERS]
    else:
        sets = [LETTERS] if number <= len(LETTERS) else [PAIRS]
    for words in sets:
        for space in ("", " ") if end[-1:].isspace() or end.endswith(">") else (" ", ""):
            found = model.tokenizer.tokens_after(end, tuple(space + word for word in words))
            named = {w: t for w, t in zip(words, found, strict=True) if t is not None}
            if len(set(named.values())) == len(named) >= number:
                return dict(list(named.items())[:number])
    raise InvalidRequest(
        f"This model has no {number} labels that are single tokens after its prompt; ask for fewer options.",
        param="questions",
        code="unsupported_parameter",
    )
