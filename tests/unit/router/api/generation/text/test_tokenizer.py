from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers

from router.api.generation.output.formats import OutputFormats, ReasoningFormat, ToolFormat
from router.api.generation.text.tokenizer import Tokenizer, TokenizerError, check_text_files
from router.errors import InvalidRequest
from tests.unit.router.api.generation.text.tokenizers import byte_level, sentencepiece, word_piece


def write(folder: Path) -> None:
    byte_level().save(str(folder / "tokenizer.json"))


async def test_text_becomes_the_ids_that_the_library_gives(tmp_path: Path) -> None:
    write(tmp_path)
    tokenizer = Tokenizer.load(tmp_path, vocab_size=500)
    for text in ("", "the quick fox", "你好 " * 5000):
        ids = await tokenizer.encode(text)
        assert ids == byte_level().encode(text).ids
        assert tokenizer.decode(ids) == text


async def test_long_text_is_encoded_beside_the_event_loop(tmp_path: Path) -> None:
    write(tmp_path)
    tokenizer = Tokenizer.load(tmp_path, vocab_size=500)
    encoding = asyncio.create_task(tokenizer.encode("the quick brown fox " * 50_000))
    turns = 0
    while not encoding.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 10


@pytest.mark.parametrize("make", [byte_level, sentencepiece, word_piece])
async def test_the_tokens_within_a_beginning_of_a_text(
    tmp_path: Path, make: Callable[[], tokenizers.Tokenizer]
) -> None:
    make().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path, vocab_size=500)
    for text in ("the fox jumps over  the Bär. é! <s>the", "the fox\n" * 1500):
        ends = sorted({0, len(text), *range(0, len(text), 1 + len(text) // 60)})
        ids, counts = await tokenizer.encode_to_ends(text, ends)
        assert ids == await tokenizer.encode_rendered(text)
        offsets = make().encode(text, add_special_tokens=False).offsets
        for end, count in zip(ends, counts, strict=True):
            assert all(stop <= end for _, stop in offsets[:count])
            assert all(stop > end or start == stop for start, stop in offsets[count:])


def test_a_model_without_a_chat_template_refuses_chats(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(InvalidRequest) as refusal:
        Tokenizer.load(tmp_path, vocab_size=500).render([{"role": "user", "content": "hi"}], {})
    assert refusal.value.code == "no_chat_template"


async def test_a_chat_gets_no_special_tokens_but_those_of_its_template(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("<s>{{ messages[0].content }}")
    tokenizer = Tokenizer.load(tmp_path, vocab_size=500)
    ids = await tokenizer.encode_rendered(tokenizer.render([{"role": "user", "content": "the"}], {}))
    assert ids == [byte_level().token_to_id("<s>"), *(await tokenizer.encode("the"))]


def test_a_folder_without_a_tokenizer_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="take it from a checkpoint of the same model"):
        Tokenizer.load(tmp_path, vocab_size=500)


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", "{"), ("chat_template.jinja", "{% if %}"), ("tokenizer_config.json", "{")],
)
def test_a_file_that_cannot_be_read_is_an_error_that_names_its_place(
    tmp_path: Path, name: str, content: str
) -> None:
    write(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(TokenizerError, match=str(tmp_path)):
        Tokenizer.load(tmp_path, vocab_size=500)


def test_a_chat_template_file_replaces_the_models_own_with_its_formats_and_special_tokens(
    tmp_path: Path,
) -> None:
    write(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("own")
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    chosen = tmp_path / "other.jinja"
    chosen.write_text("{{ bos_token }}{{ messages[0].content }}{{ tools }}<tool_call><arg_key><think>")
    tokenizer = Tokenizer.load(tmp_path, vocab_size=500, template=str(chosen))
    prompt = tokenizer.render([{"role": "user", "content": "the"}], {})
    assert prompt.startswith("<s>the")
    assert tokenizer.output_formats == OutputFormats(ToolFormat.GLM, ReasoningFormat.THINK)


@pytest.mark.parametrize("content", [None, "{% if %}", b"\xff\xfe"], ids=["missing", "no Jinja", "no text"])
def test_a_chat_template_file_that_cannot_be_used_is_named_before_workers_start(
    tmp_path: Path, content: str | bytes | None
) -> None:
    write(tmp_path)
    chosen = tmp_path / "other.jinja"
    if content is not None:
        chosen.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TokenizerError, match=f"--chat-template {chosen} cannot be used: "):
        check_text_files(tmp_path, str(chosen))
