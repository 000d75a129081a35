"""LiteLLM: embeddings by OpenAI's API, ranks by Cohere's and by that of hosted vLLM."""

import litellm
from checking import EMBEDS, MODEL, QUERY, RANKS, TEXTS, embeddings, relevances, same

answer = litellm.embedding(f"openai/{MODEL}", input=TEXTS, api_base=f"{EMBEDS}/v1", api_key="-")
same([item["embedding"] for item in answer.data], embeddings(TEXTS))

expected = [(index, round(score, 5)) for index, score in relevances(QUERY, TEXTS).items()]
for name, base in ((f"hosted_vllm/{MODEL}", RANKS), (f"cohere/{MODEL}", f"{RANKS}/v2/rerank")):
    ranked = litellm.rerank(name, query=QUERY, documents=TEXTS, api_base=base, api_key="-")
    found = [(item["index"], round(item["relevance_score"], 5)) for item in ranked.results]
    assert found == expected, (name, found, expected)
