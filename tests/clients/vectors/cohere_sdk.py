"""Cohere's SDK: embeddings in several types, and ranks of documents."""

import cohere
from checking import EMBEDS, MODEL, QUERY, RANKS, TEXTS, embeddings, relevances, same

embedded = cohere.ClientV2(api_key="-", base_url=EMBEDS).embed(
    model=MODEL, texts=TEXTS, input_type="search_document", embedding_types=["float", "ubinary"]
)
same(embedded.embeddings.float_, embeddings(TEXTS))
assert all(len(row) == len(embeddings(["a"])[0]) // 8 for row in embedded.embeddings.ubinary)

ranked = cohere.ClientV2(api_key="-", base_url=RANKS).rerank(
    model=MODEL, query=QUERY, documents=TEXTS, top_n=2
)
best = list(relevances(QUERY, TEXTS).items())[:2]
assert [(item.index, round(item.relevance_score, 5)) for item in ranked.results] == [
    (index, round(score, 5)) for index, score in best
]
