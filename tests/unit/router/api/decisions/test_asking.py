"""How questions are put into prompts: the state encoded once, reasoning closed, labels of one token."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from router.api.decisions.asking import QuestionForm, with_question
from router.api.decisions.questions import OptionShares, Question, QuestionKind, QuestionOption
from router.api.generation.output.call_formats import ToolFormat
from router.api.generation.output.formats import OutputFormats
from router.api.generation.output.reasoning import ReasoningFormat
from router.api.generation.text.chat_template import ChatTemplate
from router.api.generation.text.tokenizer import Tokenizer
from router.errors import InvalidRequest
from tests.unit.router.api.generation.text.tokenizers import CORPUS, byte_level, sentencepiece, word_piece

TEMPLATE = "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}<s>assistant{{ '\n' }}"
STATE = [{"role": "user", "content": "The parcel came late.\n"}]


def tokenizer(
    template: str = TEMPLATE, backend: Callable[[], tokenizers.Tokenizer] = byte_level
) -> Tokenizer:
    return Tokenizer(backend(), vocab_size=1000, chat_template=ChatTemplate(template, {}))


def form(template: str = TEMPLATE, formats: OutputFormats | None = None) -> QuestionForm:
    used = Tokenizer(byte_level(), vocab_size=1000, chat_template=ChatTemplate(template, {}))
    rendered = used.render(with_question(STATE), {"enable_thinking": False, "thinking": False})
    return QuestionForm.of(rendered, used, used.output_formats if formats is None else formats)


def choice(number: int) -> Question:
    options = tuple(QuestionOption(f"option {n}") for n in range(number))
    return Question(QuestionKind.CHOICE, "Which?", options)


@given(st.lists(st.sampled_from([*CORPUS, "\n", " ", "x\n", "\n\n", "</s>"]), max_size=60), st.data())
@pytest.mark.parametrize("backend", [byte_level, sentencepiece, word_piece])
def test_a_shared_text_is_encoded_like_each_whole_text(
    backend: Callable[[], tokenizers.Tokenizer], parts: list[str], data: st.DataObject
) -> None:
    used, shared = Tokenizer(backend(), vocab_size=1000), "".join(parts)
    rests = data.draw(st.lists(st.sampled_from(["", " the", "fox", "\nthe lazy dog", "</s>"]), max_size=4))
    whole = used.encode_batch([shared + rest for rest in rests], add_special_tokens=False)
    assert used.encode_after(shared, rests) == whole


def test_the_question_follows_the_state_in_the_message_of_the_user() -> None:
    question = choice(2)
    text = form().before + form().rest(question, form().labels(question))
    asked = "Which?\nA. option 0\nB. option 1\nAnswer with the letter of one option alone."
    assert text == f"<s>user\nThe parcel came late.\n\n{asked}</s>\n<s>assistant\n"


def test_after_a_message_of_the_assistant_it_has_a_message_of_its_own() -> None:
    messages = with_question([*STATE, {"role": "assistant", "content": "Sorry."}])
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    ("opened", "end"),
    [
        ("{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}", "<think>\n\n</think>\n\n"),
        ("<think>{{ '\n' }}", "<think>\n\n</think>\n\n"),
        ("{% if thinking %}<think>{% endif %}", ""),
        ("[THINK]", "[THINK]\n[/THINK]\n\n"),
    ],
)
def test_reasoning_is_off_or_closed(opened: str, end: str) -> None:
    assert form(TEMPLATE + opened).end == "</s>\n<s>assistant\n" + end


def test_gpt_oss_answers_in_its_final_channel() -> None:
    formats = OutputFormats(ToolFormat.HARMONY, ReasoningFormat.HARMONY)
    assert form("{{ messages[-1].content }}<|start|>assistant", formats).end.endswith(
        "<|start|>assistant<|channel|>final<|message|>"
    )


@pytest.mark.parametrize("number", [2, 26])
def test_labels_are_the_tokens_that_letters_are_after_the_prompt(number: int) -> None:
    used = form()
    labels = used.labels(choice(number))
    assert [*labels] == [chr(ord("A") + n) for n in range(number)]
    [before] = used.tokenizer.encode_batch([used.end], add_special_tokens=False)
    for label, token in labels.items():
        [after] = used.tokenizer.encode_batch([used.end + label], add_special_tokens=False)
        assert after == [*before, token]


def test_more_options_have_pairs_of_letters_or_are_refused_by_number() -> None:
    with pytest.raises(InvalidRequest, match="no 27 labels") as refused:
        form().labels(choice(27))
    assert refused.value.param == "questions"
    backend = byte_level()
    pairs = [f"{a}{b}" for a in "ABC" for b in "ABCDEFGHIJKLMNOP"]
    backend.add_tokens(pairs)
    used = Tokenizer(backend, vocab_size=1000, chat_template=ChatTemplate(TEMPLATE, {}))
    rendered = used.render(with_question(STATE), {})
    labels = QuestionForm.of(rendered, used, OutputFormats()).labels(choice(40))
    assert len(set(labels.values())) == 40
    assert all(len(label) == 2 for label in labels)


def test_a_predicate_is_answered_by_yes_and_no_where_these_are_tokens() -> None:
    options = (QuestionOption("Yes"), QuestionOption("No", "before noon"))
    predicate = Question(QuestionKind.PREDICATE, "It was late.", options)
    assert [*form().labels(predicate)] == ["A", "B"]
    backend = byte_level()
    backend.add_tokens(["Yes", "No"])
    used = Tokenizer(backend, vocab_size=1000, chat_template=ChatTemplate(TEMPLATE, {}))
    labels = QuestionForm.of(used.render(with_question(STATE), {}), used, OutputFormats()).labels(predicate)
    assert [*labels] == ["Yes", "No"]
    assert predicate.asked(tuple(labels)).endswith("\nNo: before noon\nAnswer with Yes or No alone.")


@pytest.mark.parametrize("template", ["{{ messages|length }}", "{{ messages[-1].content * 2 }}"])
def test_a_template_that_does_not_show_the_question_once_is_refused(template: str) -> None:
    with pytest.raises(InvalidRequest, match="does not show the last message once"):
        form(template)


def test_confidence_is_the_share_of_the_best_option_among_all_tokens() -> None:
    shares = OptionShares((0.2, 0.5, 0.3), mass=0.8)
    assert (shares.best, shares.confidence) == (1, 0.4)
    assert shares.level == pytest.approx(0.5 + 2 * 0.3)
