"""LangChain: embeddings of documents and queries, sync and async, and a vector store over them."""

import asyncio

from checking import EMBEDS, MODEL, TEXTS, embeddings, same
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings

EMBED = OpenAIEmbeddings(
    model=MODEL,
    base_url=f"{EMBEDS}/v1",
    api_key="-",
    check_embedding_ctx_length=False,  # else it sends ids of OpenAI's tokenizer
)
expected = embeddings(TEXTS)

same(EMBED.embed_documents(TEXTS), expected)
same([EMBED.embed_query(text) for text in TEXTS], expected)
same(asyncio.run(EMBED.aembed_documents(TEXTS)), expected)
store = InMemoryVectorStore.from_texts(TEXTS, EMBED)
[(found, score)] = store.similarity_search_with_score(TEXTS[1], k=1)
assert found.page_content == TEXTS[1]
assert score > 0.999
