"""Writes minilm_golden.json with sentence-transformers, which is not among the dependencies."""

from __future__ import annotations

import json
from pathlib import Path

from engine.modeling.loader.checkpoint import resolve

TEXTS = [
    "",
    "a",
    "The quick brown fox jumps over the lazy dog.",
    "Straße, naïve, 東京",
    "to be or not to be " * 30,
]

if __name__ == "__main__":
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(resolve("minilm").path), device="cpu")
    rows = [[round(float(value), 8) for value in row] for row in model.encode(TEXTS)]
    target = Path(__file__).with_name("minilm_golden.json")
    target.write_text(json.dumps({"texts": TEXTS, "embeddings": rows}) + "\n")
