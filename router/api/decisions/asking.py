"""Asks questions about a conversation: renders the state once, and labels the options of each question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from router.api.decisions.questions import LETTERS, PAIRS, YES_NO, OptionShares, Question, QuestionKind
from router.api.decisions.reading import Reading, read, softmax
from router.api.generation.generation import Generation
from router.api.generation.generation_request import Chat
from router.api.generation.output.formats import OutputFormats
from router.api.generation.output.reasoning import TAGS, THINK, ReasoningFormat
from router.api.generation.text.tokenizer import Tokenizer
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
    messages = with_question(asked.messages)
    model.check_messages(len(messages))
    text = await model.rendered(Chat(messages, NO_THINKING | dict(asked.template_options)))
    form = QuestionForm.of(text, model.tokenizer, model.formats)
    labels = [form.labels(question) for question in asked.questions]
    rests = [form.rest(q, names) for q, names in zip(asked.questions, labels, strict=True)]
    prompts = await model.tokenizer.encode_with_shared(form.before, rests)
    reading = await read(model, asked.id, prompts, all_ids(labels), asked.work, timings=asked.timings)
    return shares_of(labels, reading.rows), reading


Labels: TypeAlias = Mapping[str, int]
"""A token for each option of a question, by the label that it is."""


def with_question(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The conversation with a place for a question, at the end of the last message if that is the user's."""
    *others, last = messages
    if last["role"] == "user":
        return [*others, {**last, "content": f"{last['content'].rstrip()}\n\n{_HERE}"}]
    return [*messages, {"role": "user", "content": _HERE}]


def all_ids(labels: Sequence[Labels]) -> list[int]:
    """Tokens of all labels, each once."""
    return list(dict.fromkeys(token for names in labels for token in names.values()))


def shares_of(labels: Sequence[Labels], rows: Sequence[Mapping[int, float]]) -> list[OptionShares]:
    """Answers to questions, from the log-probabilities that were read for each."""
    pairs = zip(labels, rows, strict=True)
    return [OptionShares(*softmax([row[token] for token in names.values()])) for names, row in pairs]


@dataclass(frozen=True, slots=True)
class QuestionForm:
    """A rendered conversation, and how a question about it is put into it."""

    before: str
    """Text before a question."""
    end: str
    """Text after it, up to where the answer begins, without reasoning."""
    tokenizer: Tokenizer

    @classmethod
    def of(cls, rendered: str, tokenizer: Tokenizer, formats: OutputFormats) -> QuestionForm:
        """`rendered`: a conversation `with_question`. Raises InvalidRequest."""
        before, mark, end = rendered.partition(_HERE)
        if not mark or _HERE in end:
            raise InvalidRequest(
                "The model's chat template does not show the last message once.", param="input"
            )
        return cls(before, end + _closing(end, formats), tokenizer)

    def rest(self, question: Question, labels: Labels) -> str:
        """Text after `before` if this question is asked."""
        return question.asked(tuple(labels)) + self.end

    def labels(self, question: Question) -> Labels:
        """Labels of its options. Raises InvalidRequest if there are too few that are single tokens."""
        number, end = len(question.options), self.end
        if question.kind is QuestionKind.PREDICATE:
            sets = [YES_NO, LETTERS]
        else:
            sets = [LETTERS] if number <= len(LETTERS) else [PAIRS]
        for words in sets:
            for space in ("", " ") if end[-1:].isspace() or end.endswith(">") else (" ", ""):
                found = self.tokenizer.tokens_after(end, tuple(space + word for word in words))
                named = {w: t for w, t in zip(words, found, strict=True) if t is not None}
                if len(set(named.values())) == len(named) >= number:
                    return dict(list(named.items())[:number])
        raise InvalidRequest(
            f"This model has no {number} labels that are single tokens after its prompt; ask fewer options.",
            param="questions",
            code="unsupported_parameter",
        )


def _closing(end: str, formats: OutputFormats) -> str:
    """What ends the reasoning that a prompt with this end would be answered with; empty if there is none."""
    if formats.reasoning is ReasoningFormat.HARMONY:
        return "<|channel|>final<|message|>"
    tags = TAGS.get(formats.reasoning, THINK) if formats.reasoning else THINK
    return f"\n{tags.closing}\n\n" if end.rstrip().endswith(tags.opening) else ""
