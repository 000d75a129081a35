"""Offline inference in one process: prompts in, answers out, no server and no Ray.

>>> from baton import LLM, SamplingParams
>>> llm = LLM("smollm2")
>>> [answer] = llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=8))
>>> print(answer.outputs[0].text)
"""

from baton.llm import LLM
from baton.lora import LoRARequest
from baton.outputs import CompletionOutput, Logprob, RequestOutput
from baton.sampling_params import SamplingParams
from common.version import VERSION as __version__  # noqa: N811

__all__ = [
    "LLM",
    "CompletionOutput",
    "LoRARequest",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]
