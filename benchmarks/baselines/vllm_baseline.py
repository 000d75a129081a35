"""Measures vLLM's CPU build on the same requests, inside its process.

Runs with the Python of vLLM's environment, so it imports nothing of Baton. Reads requests from standard input
and writes records to the file named by the job, since vLLM itself prints to standard output.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


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
