"""Texts a second of `baton.LLM.embed` beside sentence-transformers, in alternating runs on this machine.

python -m benchmarks.embeddings --model minilm --texts 1000 --rounds 5
python -m benchmarks.embeddings --model FOLDER --tokenizer smollm2 --load-format dummy --device cuda \\
    --dtype bfloat16 --convert embed --words 5-25,300-500

Each round has texts of its own, which no cache knows. Without sentence-transformers installed, on a GPU, and
with the tokenizer of another model, only Baton is measured. FOLDER has a config.json; weights are random.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

from baton import LLM
from benchmarks.lib.model_folder import with_tokenizer
from engine.modeling.loader.checkpoint import resolve

_WORDS: Final = ("the", "prefill", "of", "a", "prompt", "is", "sent", "to", "workers", "in", "chunks")

Encode: TypeAlias = Callable[[Sequence[str]], Any]
Words: TypeAlias = tuple[int, int]
"""Least and highest number of words of a text."""


def texts_of(count: int, words: Words, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(_WORDS, k=draw.randint(*words))) for _ in range(count)]


def ranges(text: str) -> list[Words]:
    """Ranges as in "5-25,300-500". Raises ValueError."""
    pairs = (part.split("-") for part in text.split(","))
    return [(int(least), int(most)) for least, most in pairs]


def measure(
    sides: Mapping[str, Encode], count: int, words: Words, rounds: int
) -> Mapping[str, Sequence[float]]:
    """Texts a second of each side, by round. Sides take turns; some texts go before, and are not counted."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for encode in sides.values():
        encode(texts_of(min(count, 50), words, seed=rounds))
    for number in range(rounds):
        texts = texts_of(count, words, seed=number)
        for name, encode in sides.items():
            began = time.perf_counter()
            encode(texts)
            rates[name].append(count / (time.perf_counter() - began))
    return rates


def sides_of(llm: LLM, asked: argparse.Namespace) -> dict[str, Encode]:
    sides: dict[str, Encode] = {"baton": llm.embed}
    compares = asked.device == "cpu" and asked.tokenizer is None
    if compares and importlib.util.find_spec("sentence_transformers") is not None:
        library = importlib.import_module("sentence_transformers")
        other = library.SentenceTransformer(str(resolve(asked.model).path), device="cpu")
        sides["sentence-transformers"] = lambda given: other.encode(list(given), show_progress_bar=False)
    return sides


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--words", type=ranges, default=[(5, 25)], metavar="LEAST-MOST,...")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokenizer", metavar="MODEL", help="take the tokenizer from there")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--load-format", default="auto", help="dummy: random weights")
    parser.add_argument("--convert", default="auto", help="embed: of a model of text")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    asked = make_parser().parse_args(argv)
    with TemporaryDirectory() as scratch:
        names = ("device", "dtype", "load_format", "convert")
        model = with_tokenizer(asked.model, asked.tokenizer, Path(scratch))
        with LLM(model, **{name: getattr(asked, name) for name in names}) as llm:
            sides = sides_of(llm, asked)
            for words in asked.words:
                report(measure(sides, asked.texts, words, asked.rounds), words)


def report(rates: Mapping[str, Sequence[float]], words: Words) -> None:
    rounds = len(next(iter(rates.values())))
    print("texts of {} to {} words, median of {} rounds:".format(*words, rounds))
    for name, found in rates.items():
        print(f"  {name}: {statistics.median(found):.0f} texts/s ({min(found):.0f} to {max(found):.0f})")
    if len(rates) == 2:
        pairs = zip(*rates.values(), strict=True)
        print(f"  ratio of pairs: {statistics.median(ours / theirs for ours, theirs in pairs):.2f}")


if __name__ == "__main__":
    main()
