"""OpenAI's SDK: embeddings, which it asks for in base64, as floats, of token ids, shorter, and async."""

import asyncio

import openai
from checking import EMBEDS, MODEL, TEXTS, embeddings, same

CLIENT = openai.OpenAI(base_url=f"{EMBEDS}/v1", api_key="-", max_retries=0)
expected = embeddings(TEXTS)

for options in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
    answer = CLIENT.embeddings.create(model=MODEL, input=TEXTS, **options)
    if options.get("encoding_format") != "base64":
        same([item.embedding for item in answer.data], expected)
    assert answer.usage.total_tokens > 10
assert len(CLIENT.embeddings.create(model=MODEL, input="a", dimensions=8).data[0].embedding) == 8
assert len(CLIENT.embeddings.create(model=MODEL, input=[[5, 6], [7]]).data) == 2
assert [model.id for model in CLIENT.models.list()] == [MODEL]
try:
    CLIENT.embeddings.create(model=MODEL, input=[])
    raise AssertionError("no error")
except openai.BadRequestError:
    pass


async def at_once() -> None:
    async with openai.AsyncOpenAI(base_url=f"{EMBEDS}/v1", api_key="-", max_retries=0) as client:
        asked = (client.embeddings.create(model=MODEL, input=text) for text in TEXTS)
        same([answer.data[0].embedding for answer in await asyncio.gather(*asked)], expected)


asyncio.run(at_once())
