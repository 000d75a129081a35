"""Bodies of decisions, in the shapes of OpenAI's client and of TypeSafe's, and of scores of label tokens."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, Tag

from engine.core.read import MAX_LABELS
from router.api.decisions.asking import Asked
from router.api.decisions.questions import Question, QuestionKind, QuestionOption
from router.api.fields import TEXT_OR_LIST, WithoutEffect
from router.api.generation.params.bounds import ModelName, TokenId
from router.api.generation.params.validation import RequestModel
from router.api.openai.items import InputItems, as_messages
from router.api.scheduled_body import ScheduledFields
from router.errors import InvalidRequest

MAX_QUESTIONS = 400
_TRUE_FALSE = (QuestionOption("Yes"), QuestionOption("No"))


class InstructionText(RequestModel):
    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: Annotated[Any, WithoutEffect("prefixes are cached without marks")] = None


class InputJson(RequestModel):
    type: Literal["input_json"]
    data: dict[str, Any] | list[dict[str, Any]]


_Part: TypeAlias = Annotated[InstructionText | InputJson, Field(discriminator="type")]
_Instructions: TypeAlias = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[_Part], Field(min_length=1), Tag("list")], TEXT_OR_LIST
]


def _text(parts: _Instructions) -> str:
    if isinstance(parts, str):
        return parts
    return "\n".join(p.text if isinstance(p, InstructionText) else _compact(p.data) for p in parts)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class _Asked(RequestModel):
    instructions: _Instructions
    name: str | None = None


class PredicateBody(_Asked):
    type: Literal["predicate"]

    def question(self) -> Question:
        return Question(QuestionKind.PREDICATE, _text(self.instructions), _TRUE_FALSE)


class ChoiceOption(RequestModel):
    value: str | bool
    description: str | None = None


class ChoiceBody(_Asked):
    type: Literal["choice"]
    choices: Annotated[list[ChoiceOption], Field(min_length=2, max_length=255)]

    def question(self) -> Question:
        values = [(type(each.value), each.value) for each in self.choices]
        if len(set(values)) < len(values):
            raise InvalidRequest("Two choices of a question have the same value.", param="questions")
        options = tuple(QuestionOption(_said(each.value), each.description or "") for each in self.choices)
        return Question(QuestionKind.CHOICE, _text(self.instructions), options)


class ScoreLevel(RequestModel):
    label: str
    description: str | None = None


class ScoreBody(_Asked):
    type: Literal["score"]
    levels: Annotated[list[ScoreLevel], Field(min_length=2, max_length=255)]

    def question(self) -> Question:
        options = tuple(QuestionOption(level.label, level.description or "") for level in self.levels)
        return Question(QuestionKind.SCORE, _text(self.instructions), options)


def _said(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


QuestionBody: TypeAlias = Annotated[PredicateBody | ChoiceBody | ScoreBody, Field(discriminator="type")]


def _plain_parts(items: Any) -> Any:
    """The input with JSON parts as text, and calls of custom tools as calls of functions."""
    return [_plain_item(item) for item in items] if isinstance(items, list) else items


def _plain_item(item: Any) -> Any:
    match item:
        case {"type": "custom_tool_call", "call_id": call, "name": name, "input": str(text)}:
            arguments = _compact({"input": text})
            return {"type": "function_call", "call_id": call, "name": name, "arguments": arguments}
        case {"type": "custom_tool_call_output"}:
            return {**item, "type": "function_call_output"}
        case {"content": list(parts)}:
            return {**item, "content": [_plain_part(part) for part in parts]}
    return item


def _plain_part(part: Any) -> Any:
    match part:
        case {"type": "input_json", "data": dict() | list() as data}:
            return {"type": "input_text", "text": _compact(data)}
        case {"type": "refusal", "refusal": str(text)}:
            return {"type": "output_text", "text": text}
    return part


class DecisionBody(ScheduledFields):
    """POST /v1/decisions."""

    model: ModelName | None = None
    """Absent: the served model."""
    input: Annotated[
        Annotated[str, Tag("text")] | Annotated[InputItems, BeforeValidator(_plain_parts), Tag("list")],
        TEXT_OR_LIST,
    ]
    """A text, or messages, calls of tools and their outputs; text and JSON only."""
    questions: Annotated[list[QuestionBody], Field(min_length=1, max_length=MAX_QUESTIONS)]
    """Predicates, choices and scores about the input."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables of the chat template; thinking is off."""
    timings: bool | None = None
    """Return the breakdown of the time of each question."""
    prompt_cache_options: Annotated[Any, WithoutEffect("prefixes are cached without options")] = None
    safety_identifier: Annotated[Any, WithoutEffect("bookkeeping of OpenAI's service")] = None

    def to_asked(self, request_id: str) -> Asked:
        return Asked(
            id=request_id,
            messages=as_messages(self.input, None),
            template_options=self.chat_template_kwargs or {},
            questions=[question.question() for question in self.questions],
            work=self.work,
            timings=bool(self.timings),
        )


_Criteria: TypeAlias = dict[str, str | None]


class NoulBody(RequestModel):
    type: Literal["noul"]
    instructions: str = ""
    criteria: _Criteria | None = None
    """What `true` and `false` mean."""

    def question(self) -> Question:
        means = self.criteria or {}
        if wrong := sorted(means.keys() - {"true", "false"}):
            raise InvalidRequest(f"criteria of a noul are true and false, not {wrong[0]}.", param="questions")
        options = tuple(
            QuestionOption(option.text, means.get(name) or "")
            for option, name in zip(_TRUE_FALSE, ("true", "false"), strict=True)
        )
        return Question(QuestionKind.PREDICATE, self.instructions, options)

    @property
    def names(self) -> list[str]:
        return ["true", "false"]


class NamedChoiceBody(RequestModel):
    type: Literal["choice"]
    instructions: str = ""
    criteria: _Criteria | list[str]
    """The options, and what they mean."""

    def question(self) -> Question:
        means: _Criteria = self.criteria if isinstance(self.criteria, dict) else dict.fromkeys(self.criteria)
        if not 2 <= len(means) <= 255:
            raise InvalidRequest("A choice has from 2 to 255 different options.", param="questions")
        options = tuple(QuestionOption(name, text or "") for name, text in means.items())
        return Question(QuestionKind.CHOICE, self.instructions, options)

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(self.criteria))


class LevelsBody(RequestModel):
    type: Literal["score"]
    instructions: str = ""
    criteria: Annotated[list[str], Field(min_length=2, max_length=255)]
    """The levels, from the lowest."""

    def question(self) -> Question:
        options = tuple(map(QuestionOption, self.criteria))
        return Question(QuestionKind.SCORE, self.instructions, options)

    @property
    def names(self) -> list[str]:
        return self.criteria


NamedQuestionBody: TypeAlias = Annotated[NoulBody | NamedChoiceBody | LevelsBody, Field(discriminator="type")]


class SystemOneBody(ScheduledFields):
    """POST /v1/systemone."""

    model: ModelName | None = None
    """Absent: the served model."""
    state: str | dict[str, Any] | list[Any]
    """A text, or JSON."""
    questions: Annotated[dict[str, NamedQuestionBody], Field(min_length=1, max_length=MAX_QUESTIONS)]
    """Questions by their names."""
    timings: bool | None = None
    """Return the breakdown of the time of each question."""

    def to_asked(self, request_id: str) -> Asked:
        state = self.state if isinstance(self.state, str) else _compact(self.state)
        return Asked(
            id=request_id,
            messages=[{"role": "user", "content": state}],
            template_options={},
            questions=[question.question() for question in self.questions.values()],
            work=self.work,
            timings=bool(self.timings),
        )


_Ids: TypeAlias = Annotated[list[TokenId], Field(min_length=1)]


class LabelScoreBody(ScheduledFields):
    """POST /v1/score and /generative_scoring: probabilities of tokens after the query and each item."""

    model: ModelName | None = None
    """Absent: the served model."""
    query: str | _Ids
    items: str | Annotated[list[str] | list[_Ids], Field(min_length=1, max_length=MAX_QUESTIONS)]
    """Texts, or token ids if `query` is."""
    label_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=MAX_LABELS)]
    apply_softmax: bool | None = None
    """Probabilities among the labels; otherwise among all tokens."""
    item_first: bool | None = None
    """The item comes before the query."""
    add_special_tokens: bool | None = None
    """False: without the tokens that the tokenizer puts before a text."""
