"""Arguments of the programs: base URLs of a server of embeddings and of a reranker, name of both models.

`embeddings` and `relevances` are what these answer to plain requests, to compare with.
"""

import json
import math
import sys
from collections.abc import Sequence
from urllib.request import Request, urlopen

EMBEDS, RANKS, MODEL = sys.argv[1:4]
QUERY = "which animal jumps?"
TEXTS = ["the quick brown fox", "a lazy dog", "über die Brücke " * 20]


def post(url, body):
    request = Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)


def embeddings(texts: Sequence[str]) -> list[list[float]]:
    answer = post(f"{EMBEDS}/v1/embeddings", {"model": MODEL, "input": list(texts)})
    return [item["embedding"] for item in answer["data"]]


def relevances(query: str, texts: Sequence[str]) -> dict[int, float]:
    """Scores by the number of the text, the best first."""
    answer = post(f"{RANKS}/v1/rerank", {"model": MODEL, "query": query, "documents": list(texts)})
    return {item["index"]: item["relevance_score"] for item in answer["results"]}


def same(found: Sequence[Sequence[float]], expected: Sequence[Sequence[float]], within: float = 1e-6) -> None:
    assert len(found) == len(expected), (len(found), len(expected))
    for one, other in zip(found, expected, strict=True):
        assert len(one) == len(other) > 4, (len(one), len(other))
        assert math.dist(one, other) < within, (one, other)
