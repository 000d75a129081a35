"""A loop as benchmarks of embeddings have it: batches of sentences, cosines, ranks."""

import numpy as np
import openai
from checking import EMBEDS, MODEL

CLIENT = openai.OpenAI(base_url=f"{EMBEDS}/v1", api_key="-", max_retries=0)


def encode(sentences: list[str], batch_size: int = 64) -> np.ndarray:
    batches = (sentences[at : at + batch_size] for at in range(0, len(sentences), batch_size))
    answers = (CLIENT.embeddings.create(model=MODEL, input=batch).data for batch in batches)
    return np.array([item.embedding for answer in answers for item in answer])


corpus = [f"text number {number} of a corpus, " + "and more " * (number % 7) for number in range(300)]
order = np.random.default_rng(0).permutation(len(corpus))
vectors, queries = encode(corpus), encode([corpus[at] for at in order])
assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
assert (np.argmax(queries @ vectors.T, axis=1) == order).mean() == 1.0
