"""Texts a second of `baton.LLM.embed` beside sentence-transformers, in alternating runs on this machine.

python -m benchmarks.embeddings --model minilm --texts 1000 --rounds 5
python -m benchmarks.embeddings --model FOLDER --tokenizer smollm2 --load-format dummy --device cuda

Without sentence-transformers installed, on a GPU, and with the tokenizer of another model, only Baton is
measured. FOLDER has a config.json; weights are random.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from baton import LLM
from benchmarks.lib.model_folder import with_tokenizer
from engine.modeling.loader.checkpoint import resolve

_WORDS: Final = ("the", "prefill", "of", "a", "prompt", "is", "sent", "to", "workers", "in", "chunks")


def texts_of(count: int, seed: int = 0) -> list[str]:
    """Short texts of 5 to 25 words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(_WORDS, k=draw.randint(5, 25))) for _ in range(count)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokenizer", metavar="MODEL", help="take the tokenizer from there")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--load-format", default="auto", help="dummy: random weights")
    parser.add_argument("--convert", default="auto", help="embed: of a model of text")
    asked = parser.parse_args(argv)
    texts = texts_of(asked.texts)
    scratch = TemporaryDirectory()
    names = ("device", "dtype", "load_format", "convert")
    model = with_tokenizer(asked.model, asked.tokenizer, Path(scratch.name))
    llm = LLM(model, **{name: getattr(asked, name) for name in names})
    sides: dict[str, Callable[[Sequence[str]], Any]] = {"baton": llm.embed}
    compares = asked.device == "cpu" and asked.tokenizer is None
    if compares and importlib.util.find_spec("sentence_transformers") is not None:
        library = importlib.import_module("sentence_transformers")
        other = library.SentenceTransformer(str(resolve(asked.model).path), device="cpu")
        sides["sentence-transformers"] = lambda given: other.encode(list(given), show_progress_bar=False)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for encode in sides.values():
        encode(texts[:50])
    for _ in range(asked.rounds):
        for name, encode in sides.items():
            began = time.perf_counter()
            encode(texts)
            rates[name].append(len(texts) / (time.perf_counter() - began))
    for name, found in rates.items():
        print(f"{name}: {statistics.median(found):.0f} texts/s (median of {asked.rounds})")
    if len(sides) == 2:
        pairs = zip(*rates.values(), strict=True)
        print(f"ratio of pairs: {statistics.median(ours / theirs for ours, theirs in pairs):.2f}")


if __name__ == "__main__":
    main()
