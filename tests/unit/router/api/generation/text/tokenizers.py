"""Small tokenizers of every kind that the router meets, made on the spot."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "Ein Bär fährt über die Brücke; 你好，世界。привет мир 👋🏽",
    "def f(x):\n\treturn x + 1\n\n",
]


def byte_level(vocab_size: int = 400) -> tokenizers.Tokenizer:
    """Like GPT-2's, Llama 3's and Qwen's: every byte has a token, so every text can be written."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=["<s>", "</s>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.add_tokens([AddedToken("<tool call>", normalized=False), "é!"])
    return tokenizer


def sentencepiece() -> tokenizers.Tokenizer:
    """Like Llama 2's and Mistral's: blocks for spaces, and a token a byte for what has no piece."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", *"abcdefghijklmnopqrstuvwxyz"]
    pieces = ["th", "the", "▁the", "▁a", "in", "▁in"]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "a"), ("i", "n"), ("▁", "in")]
    vocabulary = {word: i for i, word in enumerate(words + pieces)}
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def word_piece() -> tokenizers.Tokenizer:
    """Like BERT's: what a token adds depends on the token before it."""
    words = ["[UNK]", "the", "fox", "jump", "##s", "##ed", "over", "a", "##n", "."]
    tokenizer = tokenizers.Tokenizer(
        models.WordPiece(vocab={word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer
