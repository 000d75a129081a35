"""Answer prompts in one process: no server, no Ray, no network.

python examples/offline.py
"""

from baton import LLM, SamplingParams

with LLM("smollm2", max_model_len=2048) as llm:
    prompts = ["The capital of France is", "A relay race is"]
    for answer in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=24)):
        print(repr(answer.prompt), "->", repr(answer.outputs[0].text))
