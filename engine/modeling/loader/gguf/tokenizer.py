"""Writes the tokenizer of a GGUF file as tokenizer.json, tokenizer_config.json and chat_template.jinja.

A GGUF file has the vocabulary, the merges, and the name of a pre-tokenizer, but not the rules that go with
them, which depend on the kind of vocabulary. Token ids are those of transformers' own conversion, with
three exceptions: no token gets an id outside the file's vocabulary, added tokens with spaces or letters
outside ASCII are matched whole, as the models' original tokenizers do, and SentencePiece's space before a
text is added to every text, as llama.cpp does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeAlias

from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from engine.model_config.errors import UnsupportedModel
from engine.modeling.loader.gguf.deepseek_splits import DEEPSEEK_CODER, DEEPSEEK_LLM

Vocabulary: TypeAlias = dict[str, int]
Merges: TypeAlias = list[tuple[str, str]]
Get: TypeAlias = Callable[[str], Any]
"""Value of a key of the file, or None."""

_SPACE: Final = "▁"
"""A space, as SentencePiece spells it."""


class _Kind(Enum):
    """Kind of vocabulary."""

    BYTES = "gpt2"
    """Byte-level BPE."""
    PIECES = "llama"
    """SentencePiece's BPE: pieces with scores, and single bytes as a fallback."""
    GEMMA = "gemma"
    """The same without a space before the text; runs of spaces are tokens."""


_GEMMA4: Final = "gemma4"
"""Gemma 4's name for a vocabulary of its family, with merges."""
_USUAL: Final = {
    _Kind.BYTES: ("<|endoftext|>",),
    _Kind.PIECES: ("<unk>", "<s>", "</s>"),
    _Kind.GEMMA: ("<unk>", "<bos>", "<eos>", "<pad>", "<mask>"),
}
"""Special tokens, where a vocabulary has them, whatever type the file gives them."""
_NAMED: Final = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""Names in tokenizer_config.json, with those of the file's keys."""

_WORDS: Final = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_REST: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDINGS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2: Final = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _LINES
_QWEN35: Final = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _LINES
_LLAMA3: Final = _QWEN2.replace(r"\p{N}| ", r"\p{N}{1,3}| ")
_TEKKEN: Final = rf"{_WORDS}*{_REST}+|{_WORDS}+{_REST}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}"
_GPT4O: Final = (
    rf"{_WORDS}*{_REST}+{_ENDINGS}?|{_WORDS}+{_REST}*{_ENDINGS}?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}"
)
_NOT_HAN: Final = r"&&[^\p{Han}]]"
_KIMI: Final = r"[\p{Han}]+|" + _GPT4O.replace(r"\p{M}]", r"\p{M}" + _NOT_HAN).replace(
    r"[\r\n/]*", r"[\r\n]*"
)
_DEEPSEEK3: Final = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
"""Each splits the parts that the one before has left."""
_SPLITS: Final = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral"), _LLAMA3),
    **dict.fromkeys(("midm-2.0", "lfm2", "jina-v5-nano", "dbrx", "smaug-bpe"), _LLAMA3),
    **dict.fromkeys(("glm4", "chatglm-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"), _QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT4O),
    "qwen35": _QWEN35,
    "tekken": _TEKKEN,
    "kimi-k2": _KIMI,
}
"""Expressions that split a text before merges, by `tokenizer.ggml.pre`."""
_IN_TURN: Final = {
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK3),
    "deepseek-llm": DEEPSEEK_LLM,
    "deepseek-coder": DEEPSEEK_CODER,
}
"""Several expressions, one after the other."""
_AS_GPT2: Final = frozenset({"gpt-2", "phi-2", "mpt", "olmo", "jais"})
_DIGITS_APART: Final = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"})
"""Pre-tokenizers that split as GPT-2 does, the second after cutting out each digit."""


def write_tokenizer(get: Get, target: Path) -> None:
    """Costs some seconds for a large vocabulary without merges. Raises UnsupportedModel."""
    source = _Source.of(get)
    tokenizer = _BUILD[source.kind](source)
    named = {name: source.named(get, key) for name, key in _NAMED.items()}
    vocabulary = tokenizer.get_vocab()
    special = {*source.of_type(TokenType.CONTROL), *_USUAL[source.kind], *filter(None, named.values())}
    tokenizer.add_special_tokens([_added(token, special=True) for token in special if token in vocabulary])
    plain = (token for token in source.of_type(TokenType.USER_DEFINED) if token not in special)
    tokenizer.add_tokens([_added(token, special=False) for token in plain if token in vocabulary])
    tokenizer.post_processor = _ends(get, source, named, vocabulary)
    tokenizer.save(str(target / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (target / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if (template := get("tokenizer.chat_template")) is not None:
        (target / "chat_template.jinja").write_text(template, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Source:
    kind: _Kind
    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float] | None
    merges: Sequence[str] | None
    pre: str | None
    """Name of the pre-tokenizer."""
    prefixed: bool
    """Whether SentencePiece puts a space before a text."""

    @classmethod
    def of(cls, get: Get) -> _Source:
        model = get("tokenizer.ggml.model")
        if model not in ("gpt2", "llama", _GEMMA4):
            raise UnsupportedModel(
                f"the GGUF file's tokenizer is of kind {model!r}, and Baton converts gpt2, llama and gemma4;"
                " use the safetensors"
            )
        of_gemma = get("general.architecture") in ("gemma2", "gemma3")
        is_gemma = model == _GEMMA4 or (model == "llama" and of_gemma)
        tokens, merges = get("tokenizer.ggml.tokens"), get("tokenizer.ggml.merges")
        scores = get("tokenizer.ggml.scores")
        if tokens is None or (merges is None and (model == "gpt2" or scores is None)):
            lacking = "tokens" if tokens is None else "merges"
            raise UnsupportedModel(f"the GGUF file lacks tokenizer.ggml.{lacking}")
        kind = _Kind.GEMMA if is_gemma else _Kind(model)
        return cls(
            kind,
            tokens,
            get("tokenizer.ggml.token_type") or (),
            scores,
            merges,
            pre=get("tokenizer.ggml.pre"),
            prefixed=get("tokenizer.ggml.add_space_prefix") is not False,
        )

    def of_type(self, kind: TokenType) -> Iterable[str]:
        return (token for token, of in zip(self.tokens, self.types, strict=False) if of == kind)

    def named(self, get: Get, key: str) -> str | None:
        number = get(f"tokenizer.ggml.{key}_token_id")
        return None if number is None else self.tokens[number]

    def pairs(self, tokens: Sequence[str], scores: Sequence[float]) -> Merges:
        """The merges of the file, or those that the vocabulary implies, the best first."""
        if self.merges is not None:
            return [(left, right) for left, right in (merge.split(" ") for merge in self.merges)]
        return _implied(_numbered(tokens), dict(zip(tokens, scores, strict=True)))


def _bytes(source: _Source) -> Tokenizer:
    split = _split(source.pre)
    whole = {*source.of_type(TokenType.CONTROL), *source.of_type(TokenType.USER_DEFINED)}
    alphabet, spell = set(pre_tokenizers.ByteLevel.alphabet()), _byte_level()

    def spelled(token: str) -> str:
        if token in whole or set(token) <= alphabet:
            return token
        return "".join(piece for piece, _ in spell.pre_tokenize_str(token))

    tokens = [spelled(token) for token in source.tokens]
    model = BPE(
        _numbered(tokens), source.pairs(tokens, ()), continuing_subword_prefix="", end_of_word_suffix=""
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _split(pre: str | None) -> pre_tokenizers.PreTokenizer:
    """Raises UnsupportedModel for a pre-tokenizer whose rules are not known."""
    as_gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre in _AS_GPT2:
        return as_gpt2
    if pre in _DIGITS_APART:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), as_gpt2])
    splits = _IN_TURN.get(pre or "") or [split for name, split in _SPLITS.items() if name == pre]
    if not splits:
        known = ", ".join(sorted({*_SPLITS, *_IN_TURN, *_AS_GPT2, *_DIGITS_APART}))
        raise UnsupportedModel(
            f"the GGUF file's pre-tokenizer {pre!r} is not supported; Baton knows {known};"
            " use the safetensors"
        )
    isolated = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in splits]
    return pre_tokenizers.Sequence([*isolated, _byte_level()])


def _pieces(source: _Source) -> Tokenizer:
    merges = source.pairs(source.tokens, source.scores or ())
    tokenizer = Tokenizer(BPE(_numbered(source.tokens), merges, fuse_unk=True, byte_fallback=True))
    # Not the pre-tokenizer Metaspace, which puts no space before a text that begins with one.
    prefix = [normalizers.Prepend(_SPACE)] if source.prefixed else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    stripped = [decoders.Strip(" ", left=1)] if source.prefixed else []
    tokenizer.decoder = decoders.Sequence([*_spaces(), *stripped])
    return tokenizer


def _gemma(source: _Source) -> Tokenizer:
    # Runs of spaces are stored as spaces. Merges are in the order of the tokens, not of their scores.
    tokens = [_SPACE * len(token) if token.isspace() and " " in token else token for token in source.tokens]
    merges = source.pairs(tokens, [-number for number in range(len(tokens))])
    model = BPE(_numbered(tokens), merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Sequence(_spaces())
    return tokenizer


_BUILD: Final[Mapping[_Kind, Callable[[_Source], Tokenizer]]] = {
    _Kind.BYTES: _bytes,
    _Kind.PIECES: _pieces,
    _Kind.GEMMA: _gemma,
}


def _numbered(tokens: Sequence[str]) -> Vocabulary:
    return {token: number for number, token in enumerate(tokens)}


def _byte_level() -> pre_tokenizers.ByteLevel:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def _spaces() -> list[decoders.Decoder]:
    return [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]


def _added(token: str, *, special: bool) -> AddedToken:
    return AddedToken(token, normalized=False, special=special)


def _implied(vocabulary: Vocabulary, scores: Mapping[str, float]) -> Merges:
    """Every cut of a token into two others, by the token's score. O(characters of all tokens)."""
    found: list[tuple[float, str, str]] = []
    for token, score in scores.items():
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        known = [pair for pair in cuts if pair[0] in vocabulary and pair[1] in vocabulary]
        known.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        found.extend((score, left, right) for left, right in known)
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(left, right) for _, left, right in found]


def _ends(
    get: Get, source: _Source, named: Mapping[str, str | None], vocabulary: Vocabulary
) -> processors.TemplateProcessing:
    """Add the tokens that begin and end a plain prompt. SentencePiece adds the first one by default."""
    adds_first = get("tokenizer.ggml.add_bos_token")
    if adds_first is None:
        adds_first = source.kind is not _Kind.BYTES
    if get("tokenizer.ggml.model") == _GEMMA4:  # the flag is set, but the original leaves it to the template
        adds_first = False
    first = named["bos_token"] if adds_first else None
    last = named["eos_token"] if get("tokenizer.ggml.add_eos_token") else None
    one = [*filter(None, [first]), "$A", *filter(None, [last])]
    two = [f"{part}:1" if part != "$A" else "$B:1" for part in one]
    special = [(token, vocabulary[token]) for token in dict.fromkeys(filter(None, (first, last)))]
    return processors.TemplateProcessing(single=one, pair=one + two, special_tokens=special)
