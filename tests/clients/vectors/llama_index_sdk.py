"""LlamaIndex: embeddings of texts and queries through its client for servers with OpenAI's API."""

import asyncio

from checking import EMBEDS, MODEL, TEXTS, embeddings, same
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

EMBED = OpenAILikeEmbedding(model_name=MODEL, api_base=f"{EMBEDS}/v1", api_key="-", embed_batch_size=2)
expected = embeddings(TEXTS)

same(EMBED.get_text_embedding_batch(TEXTS), expected)
same([EMBED.get_query_embedding(text) for text in TEXTS], expected)
same(asyncio.run(EMBED.aget_text_embedding_batch(TEXTS)), expected)
