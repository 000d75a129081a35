"""What vLLM's CPU build makes of the same requests, from inside its process.

Runs under the Python of vLLM's own environment, so it imports nothing of Baton: requests come in on standard
input and records go out to the file named by the job, for vLLM prints to standard output as it likes.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

__all__ = ["answer"]


def answer(engine: Any, prompts: list[list[int]], params: Any) -> list[dict[str, Any]]:
    """Greedy answers to all prompts at once; fields of a `Record` for each, with the time of every token."""
    sent = time.monotonic()
    records: dict[str, dict[str, Any]] = {}
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), {"prompt_token_ids": prompt}, params)
        records[str(index)] = {"sent": sent, "arrivals": [], "prompt_tokens": len(prompt), "output_tokens": 0}
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = time.monotonic()
        for output in outputs:
            record = records[output.request_id]
            tokens = len(output.outputs[0].token_ids)
            if tokens > record["output_tokens"]:
                record["arrivals"].append(now)
                record["output_tokens"] = tokens
            if output.finished:
                record["ended"] = now
    return list(records.values())


def main() -> None:
    """The job's batches (lists of prompts) run one after the other; the first one warms up."""
    from vllm import EngineArgs, LLMEngine, SamplingParams

    job = json.load(sys.stdin)
    engine = LLMEngine.from_engine_args(
        EngineArgs(model=job["model_path"], dtype=job["dtype"], max_model_len=job["max_model_len"])
    )
    params = SamplingParams(max_tokens=job["max_tokens"], ignore_eos=True, temperature=0)
    results = [answer(engine, prompts, params) for prompts in job["batches"]]
    with open(job["output"], "w") as file:
        json.dump(results, file)


if __name__ == "__main__":  # vLLM starts processes of its own by importing this file again
    main()
