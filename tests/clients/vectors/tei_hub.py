"""A client of text-embeddings-inference: huggingface_hub, with the URL of its route."""

from checking import EMBEDS, TEXTS, embeddings, same
from huggingface_hub import InferenceClient

CLIENT = InferenceClient(model=f"{EMBEDS}/embed")
expected = embeddings(TEXTS)

for text, vector in zip(TEXTS, expected, strict=True):
    found = CLIENT.feature_extraction(text, normalize=True, truncate=True)
    same(found.tolist(), [vector])
