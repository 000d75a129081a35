"""The tokenizer of a GGUF file gives the token ids that transformers' conversion of the file gives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
from gguf import GGUFReader, GGUFWriter, TokenType
from tokenizers import pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import GemmaTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer, TokenizersBackend
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from engine.model_config.errors import UnsupportedModel
from engine.modeling.loader.gguf.tokenizer import _SPLITS, _split, write_tokenizer

ROOT = Path(__file__).resolve().parents[6]
LINES = [
    line
    for path in (*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "engine" / "sched").rglob("*.py")))
    for line in path.read_text("utf-8").splitlines(keepends=True)
]
CORPUS = [
    *("".join(LINES[first : first + 7]) for first in range(0, len(LINES), 49)),
    "",
    " ",
    "  two spaces, \t a tab,\n\n\n and   more \r\n",
    "        indented = 12345678 + 0.5e-10\n",
    "I'LL we're they'd 'TWAS don't; x²·√7, 3.14159, 2026-11-28",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Ça va où? Être naïf.",
    "Съешь же ещё этих мягких французских булок; 你好，世界！日本語のテキストです。",
    "مرحبا بالعالم हिन्दी ไทย 한국어 ελληνικά — “quotes” … ‰ ½",
    "\U0001f469‍\U0001f469‍\U0001f467 ❤️ \U0001f1e9\U0001f1ea é (e + accent) \x00\x07￿",
    "<|im_start|>user\nHi <think>hm</think><|im_end|>\n<s>a</s><unk><bos><start_of_turn>user<end_of_turn>",
    "▁a▁▁b Ġ Ċ <0x0A> [PAD12]",
]
MARKS_OF_PIECES = ("<unk>", "<s>", "</s>")
MARKS = ("<unk>", "<bos>", "<eos>", "<pad>", "<mask>")


def write(
    path: Path,
    tokens: Sequence[str],
    types: Sequence[TokenType],
    *,
    kind: str,
    architecture: str = "llama",
    pre: str | None = None,
    merges: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    adds_bos: bool | None = None,
    adds_eos: bool | None = None,
    prefixed: bool | None = None,
    ids: dict[str, int] | None = None,
) -> None:
    """A GGUF file without tensors."""
    writer = GGUFWriter(path, architecture)
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    if merges is not None:
        writer.add_token_merges(merges)
    if scores is not None:
        writer.add_token_scores(scores)
    if adds_bos is not None:
        writer.add_add_bos_token(adds_bos)
    if adds_eos is not None:
        writer.add_add_eos_token(adds_eos)
    if prefixed is not None:
        writer.add_add_space_prefix(prefixed)
    for name, number in (ids or {}).items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def ours(path: Path) -> tokenizers.Tokenizer:
    fields = GGUFReader(path).fields
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    write_tokenizer(lambda key: fields[key].contents() if key in fields else None, folder)
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def assert_equal(path: Path, oracle: type[TokenizersBackend]) -> None:
    """Ids of the corpus, with and without the tokens that begin a prompt, and text of the ids."""
    mine = ours(path)
    theirs = oracle.from_pretrained(path.parent, gguf_file=path.name)
    read_back = PreTrainedTokenizerFast.from_pretrained(path.with_suffix(""))
    for adds in (False, True):
        expected = theirs(CORPUS, add_special_tokens=adds)["input_ids"]
        assert [encoding.ids for encoding in mine.encode_batch(CORPUS, add_special_tokens=adds)] == expected
        assert read_back(CORPUS, add_special_tokens=adds)["input_ids"] == expected
    for ids in expected:
        assert mine.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    config = json.loads((path.with_suffix("") / "tokenizer_config.json").read_text())
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        assert config[name] == getattr(theirs, name)


@pytest.fixture(scope="module")
def byte_level() -> tuple[list[str], list[str]]:
    """Tokens in the order of their ids, and merges."""
    trained = tokenizers.Tokenizer(BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    trained.train_from_iterator(CORPUS, trainer)
    model = json.loads(trained.to_str())["model"]
    return [*sorted(model["vocab"], key=model["vocab"].__getitem__), "<think>"], [
        " ".join(pair) for pair in model["merges"]
    ]


def test_texts_are_split_as_transformers_splits_them() -> None:
    assert _SPLITS.items() >= GGUF_PRE_TOKENIZER_SPLITS.items()


@pytest.mark.parametrize("pre", [None, "default", "of-tomorrow"])
def test_a_pre_tokenizer_that_is_not_known_is_refused_by_name(pre: str | None, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(path, ["a", "b", "ab"], [TokenType.NORMAL] * 3, kind="gpt2", pre=pre, merges=["a b"])

    with pytest.raises(UnsupportedModel, match=f"pre-tokenizer {pre!r} is not supported; .* llama-bpe,"):
        ours(path)


def test_digits_are_cut_out_one_by_one_where_the_pre_tokenizer_does(tmp_path: Path) -> None:
    tokens = [*pre_tokenizers.ByteLevel.alphabet(), "12"]
    for pre, expected in (("gpt-2", ["a", "12"]), ("smollm", ["a", "1", "2"])):
        path = tmp_path / f"{pre}.gguf"
        write(path, tokens, [TokenType.NORMAL] * 257, kind="gpt2", pre=pre, merges=["1 2"])
        assert ours(path).encode("a12").tokens == expected


@pytest.mark.parametrize(
    ("pre", "architecture", "oracle"),
    [
        *((pre, "llama", TokenizersBackend) for pre in ("gpt-2", "llama-bpe", "tekken", "gpt-4o")),
        *((pre, "qwen2", Qwen2Tokenizer) for pre in ("qwen2", "qwen35")),
    ],
)
def test_a_byte_level_vocabulary(
    byte_level: tuple[list[str], list[str]],
    pre: str | None,
    architecture: str,
    oracle: type[TokenizersBackend],
    tmp_path: Path,
) -> None:
    tokens, merges = byte_level
    types = [TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(tokens) - 4) + [TokenType.USER_DEFINED]
    ids = {"bos": 1, "eos": 2, "padding": 2, "unknown": 0}
    path = tmp_path / "model.gguf"
    write(path, tokens, types, kind="gpt2", architecture=architecture, pre=pre, merges=merges, ids=ids)
    assert_equal(path, oracle)


@pytest.mark.parametrize(("adds_bos", "adds_eos"), [(True, None), (True, True), (False, True)])
def test_the_tokens_around_a_prompt_are_those_that_the_file_asks_for(
    byte_level: tuple[list[str], list[str]], adds_bos: bool, adds_eos: bool | None, tmp_path: Path
) -> None:
    tokens, merges = byte_level
    path = tmp_path / "model.gguf"
    types = [TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(tokens) - 3)
    write(
        path,
        tokens,
        types,
        kind="gpt2",
        pre="llama-bpe",
        merges=merges,
        adds_bos=adds_bos,
        adds_eos=adds_eos,
        ids={"bos": 1, "eos": 2},
    )
    assert_equal(path, TokenizersBackend)


def pieces(marks: Sequence[str]) -> list[str]:
    """Marks, bytes and pieces of a SentencePiece vocabulary, the best first."""
    trained = tokenizers.Tokenizer(BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=1500, show_progress=False)
    trained.train_from_iterator(CORPUS[: len(CORPUS) // 2], trainer)
    model = json.loads(trained.to_str())["model"]
    merged = ["".join(pair) for pair in model["merges"]]
    single = [token for token in model["vocab"] if token not in set(merged)]
    of_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    return list(dict.fromkeys([*marks, *of_bytes, *merged, *single]))


def types_of(tokens: Sequence[str], marks: Sequence[str]) -> list[TokenType]:
    kinds = {marks[0]: TokenType.UNKNOWN} | dict.fromkeys(marks[1:], TokenType.CONTROL)
    return [
        TokenType.BYTE if token.startswith("<0x") else kinds.get(token, TokenType.NORMAL) for token in tokens
    ]


def by_score(text: str, tokens: Sequence[str], scores: Sequence[float], *, prefixed: bool) -> list[int]:
    """SentencePiece's BPE as llama.cpp has it: merge the two neighbours whose union has the best score."""
    numbers = {token: number for number, token in enumerate(tokens)}
    found: list[int] = []
    for part in re.split("(<unk>|<s>|</s>)", text):
        if part in MARKS_OF_PIECES:
            found.append(numbers[part])
            continue
        symbols = list(("▁" if prefixed and part else "") + part.replace(" ", "▁"))
        while True:
            unions = [numbers.get(left + right) for left, right in pairwise(symbols)]
            known = [(-scores[union], at) for at, union in enumerate(unions) if union is not None]
            if not known:
                break
            _, at = min(known)
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        for symbol in symbols:
            of_bytes = [numbers[f"<0x{byte:02X}>"] for byte in symbol.encode()]
            found.extend([numbers[symbol]] if symbol in numbers else of_bytes)
    return found


@pytest.mark.parametrize("prefixed", [None, True, False])
@pytest.mark.parametrize("adds_bos", [None, False])
def test_a_vocabulary_of_sentencepiece(adds_bos: bool | None, prefixed: bool | None, tmp_path: Path) -> None:
    tokens = pieces(MARKS_OF_PIECES)
    scores = [-float(number) for number in range(len(tokens))]
    path = tmp_path / "model.gguf"
    types = types_of(tokens, MARKS_OF_PIECES)
    ids = {"bos": 1, "eos": 2, "unknown": 0}
    write(path, tokens, types, kind="llama", scores=scores, adds_bos=adds_bos, prefixed=prefixed, ids=ids)
    mine = ours(path)
    texts = [text[:400] for text in CORPUS[-60:]] + [" one space", "  two", "</s> after a mark", "a</s>b"]
    for text in texts:
        expected = by_score(text, tokens, scores, prefixed=prefixed is not False)
        assert mine.encode(text, add_special_tokens=False).ids == expected
        assert mine.encode(text).ids == [*([] if adds_bos is False else [1]), *expected]
        if not re.search("<[a-z0/]|▁", text):
            assert mine.decode(expected) == text


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3"])
def test_a_vocabulary_of_gemma(architecture: str, tmp_path: Path) -> None:
    marks = (*MARKS, "<start_of_turn>", "<end_of_turn>")
    tokens = [*pieces(marks), "  ", "   ", "    "]
    scores = [0.0 if token in marks else -1000.0 for token in tokens]  # the order is in the ids
    path = tmp_path / "model.gguf"
    ids = {"bos": 1, "eos": 2, "padding": 3, "unknown": 0}
    types = types_of(tokens, marks)
    write(path, tokens, types, kind="llama", architecture=architecture, scores=scores, ids=ids)
    assert_equal(path, GemmaTokenizer)


def test_a_vocabulary_of_gemma4(tmp_path: Path) -> None:
    marks = (*MARKS, "<|turn>", "<turn|>")
    tokens = pieces(marks)
    merges = [f"{token[:at]} {token[at:]}" for token, at in joined(tokens)]
    path = tmp_path / "model.gguf"
    ids = {"bos": 1, "eos": 2, "padding": 3, "unknown": 0}
    types = types_of(tokens, marks)
    options = {"adds_bos": True, "prefixed": False, "ids": ids, "scores": [0.0] * len(tokens)}
    write(path, tokens, types, kind="gemma4", architecture="gemma4", merges=merges, **options)
    assert_equal(path, GemmaTokenizer)


def joined(tokens: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Tokens that are two others in a row, and where they join."""
    known = set(tokens)
    for token in tokens:
        cuts = (at for at in range(1, len(token)) if token[:at] in known and token[at:] in known)
        if not token.startswith("<") and (at := next(cuts, None)) is not None:
            yield token, at


@pytest.mark.parametrize(
    ("pre", "text", "parts"),
    [
        ("deepseek-v3", "a12345中文かな b.C\n\n", ["a", "123", "45", "中文かな", " b", ".C", "\n\n"]),
        (
            "deepseek-llm",  # its punctuation has all of ASCII's letters
            "Straße 12中文かな b.C\n\n x  ",
            [*("Stra", "ß", "e", " ", "1", "2", "中文かな", " b", ".", "C", "\n", "\n", " x", "  ")],
        ),
        (
            "deepseek-coder",
            "Straße 12中文かな b.C\n\n x=",
            [*("Straße", " ", "1", "2", "中文かな", " b", ".", "C", "\n", "\n", " x", "=")],
        ),
        ("kimi-k2", "a12345中文かなB b.c/\n\n", ["a", "123", "45", "中文", "かな", "B", " b", ".c", "/\n\n"]),
        ("gpt-4o", "a12345中文かなB b.c/\n\n", ["a", "123", "45", "中文かな", "B", " b", ".c", "/\n\n"]),
    ],
)
def test_texts_are_split_as_the_publishers_expressions_split_them(
    pre: str, text: str, parts: list[str]
) -> None:
    found = _split(pre).pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in found] == parts


def test_no_token_gets_an_id_outside_the_vocabulary(
    byte_level: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    """Control tokens may have letters outside the alphabet of bytes, as DeepSeek's have."""
    tokens, merges = [*byte_level[0][3:], "<｜Assistant｜>"], byte_level[1]
    path = tmp_path / "model.gguf"
    types = [TokenType.NORMAL] * (len(tokens) - 1) + [TokenType.CONTROL]
    write(path, tokens, types, kind="gpt2", pre="gpt-2", merges=merges, ids={"eos": len(tokens) - 1})
    mine = ours(path)
    assert mine.get_vocab_size(with_added_tokens=True) == len(tokens)
    assert mine.encode("<｜Assistant｜>").ids == [len(tokens) - 1]


def test_added_tokens_of_spaces_are_matched_whole(
    byte_level: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    """MPT has such tokens, which its original tokenizer matches before it splits the text."""
    tokens, merges = [*byte_level[0], "    "], byte_level[1]
    path = tmp_path / "model.gguf"
    types = [TokenType.NORMAL] * (len(tokens) - 1) + [TokenType.USER_DEFINED]
    write(path, tokens, types, kind="gpt2", pre="gpt-2", merges=merges)
    assert ours(path).encode("a    b").tokens == ["a", "    ", "b"]


@pytest.mark.parametrize(("kind", "lacking"), [("bert", "bert"), ("gpt2", "merges"), ("llama", "merges")])
def test_a_tokenizer_that_cannot_be_built_is_refused(kind: str, lacking: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(path, ["a", "b"], [TokenType.NORMAL] * 2, kind=kind)
    with pytest.raises(UnsupportedModel, match=lacking):
        ours(path)
