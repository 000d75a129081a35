"""Tokens a second without and with drafts, side by side, on a CPU and with real text.

python -m benchmarks.speculation --tokens 256 --many 16

* edit: a source file in the prompt, to be written again; the client's prediction is the answer with every
  twentieth line changed.
* code: the first half of a source file, to be continued; no prediction.
* turns: a conversation whose last turn asks for the answer before it again, as a list; no prediction.

Each is computed for one request and for `--many` at once, which begin at different lines of the text,
greedily and to full length. The prompts are cached before, so that all requests of a run begin together. Runs
with and without drafts alternate; the answers must be the same.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.lib.command import command, save_json
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.model_folder import model_folder
from engine.config import EngineConfig, SchedulerConfig, SpeculationConfig
from engine.core.request import Request, TokenId
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from engine.model_config.model_spec import ModelSpec
from engine.speculation.kinds import NO_HINTS, DraftHints, Speculation
from router.api.generation.text.tokenizer import Tokenizer

_SOURCE: Final = Path("engine/kv/cache/radix.py")
_CHANGED: Final = 20
_NO_DRAFTS: Final = DraftHints(drafters=frozenset())
_QUESTION: Final = "Name five rivers of Europe, with the countries that they flow through."


@dataclass(frozen=True, slots=True)
class Measured:
    tokens: int
    seconds: float
    drafted: int
    accepted: int
    answers: list[list[TokenId]]


def measure(
    engine: Engine,
    prompts: Sequence[Sequence[TokenId]],
    tokens: int,
    hints: Sequence[DraftHints],
    first_id: int,
) -> Measured:
    """Compute all prompts at once; tokens and time are those from the last first token to the end."""
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    requests = [
        Request(first_id + i, prompt, sampling, hints=hint)
        for i, (prompt, hint) in enumerate(zip(prompts, hints, strict=True))
    ]
    before = engine.stats().drafts
    drafted, accepted = before.drafted, before.accepted
    for request in requests:
        engine.submit(request)
    while any(request.num_known == len(request.prompt) for request in requests):
        engine.step()
    began, known = time.perf_counter(), sum(request.num_known for request in requests)
    while engine.has_work:
        engine.step()
    counts = engine.stats().drafts
    return Measured(
        tokens=sum(request.num_known for request in requests) - known,
        seconds=time.perf_counter() - began,
        drafted=counts.drafted - drafted,
        accepted=counts.accepted - accepted,
        answers=[request.output for request in requests],
    )


def chat(tokenizer: Tokenizer, *turns: str) -> list[TokenId]:
    text = "".join(
        f"<|im_start|>{role}\n{turn}<|im_end|>\n"
        for role, turn in zip(("user", "assistant") * len(turns), turns, strict=False)
    )
    return tokenizer.encode_batch([text + "<|im_start|>assistant\n"], add_special_tokens=False)[0]


def prompts_of(name: str, tokenizer: Tokenizer, count: int, first_answer: str) -> list[list[TokenId]]:
    lines = _SOURCE.read_text().splitlines(keepends=True)
    if name == "turns":
        again = "Write the same answer again, as a numbered list, line by line."
        return [chat(tokenizer, f"{_QUESTION} ({i})", first_answer, again) for i in range(count)]
    texts = ["".join(lines[3 * i :]) for i in range(count)]
    if name == "code":
        return tokenizer.encode_batch(["".join(lines[3 * i : len(lines) // 2]) for i in range(count)])
    ask = "Write this file again, with the class RadixCache renamed to PrefixCache.\n```python\n"
    return [chat(tokenizer, f"{ask}{text}```") for text in texts]


def edited(answer: Sequence[TokenId], tokenizer: Tokenizer) -> list[TokenId]:
    """The answer with some lines changed, as a client would predict it."""
    lines = tokenizer.decode(answer).splitlines(keepends=True)
    lines = ["# another line\n" if i % _CHANGED == _CHANGED // 2 else line for i, line in enumerate(lines)]
    return tokenizer.encode_batch(["".join(lines)], add_special_tokens=False)[0]


def main() -> None:
    options = make_parser().parse_args()
    folder = model_folder(options.model)
    draft_model = options.speculative_model and model_folder(options.speculative_model)
    speculation = SpeculationConfig(
        drafters=Speculation(options.speculative).drafters,
        num_draft_tokens=options.drafts,
        model_path=draft_model,
        mtp=Speculation(options.speculative) is Speculation.MTP,
    )
    tokenizer = Tokenizer.load(folder, vocab_size=ModelSpec.from_folder(folder).vocab_size)
    engine = Engine(
        EngineConfig(
            model_path=folder,
            dtype=options.dtype,
            num_pages=8192,
            scheduler=SchedulerConfig(
                chunk_budget=512, max_running_requests=max(options.many, 1), speculation=speculation
            ),
        )
    )
    first = measure(engine, [chat(tokenizer, _QUESTION)], 96, [_NO_DRAFTS], 1)
    first_answer = tokenizer.decode(first.answers[0])
    results: list[dict[str, Any]] = []
    number = 1_000
    for name in options.texts.split(","):
        for count in dict.fromkeys((1, options.many)):
            prompts = prompts_of(name, tokenizer, count, first_answer)
            nothing, hints = [_NO_DRAFTS] * count, [NO_HINTS] * count
            seconds, tokens = {False: 0.0, True: 0.0}, {False: 0, True: 0}
            drafted = accepted = 0
            measure(engine, prompts, 1, nothing, number)  # cache the prompts
            number += count
            for _ in range(options.repeats):
                plain = measure(engine, prompts, options.tokens, nothing, number)
                if name == "edit":
                    hints = [DraftHints(prediction=edited(answer, tokenizer)) for answer in plain.answers]
                drafts = measure(engine, prompts, options.tokens, hints, number + count)
                assert drafts.answers == plain.answers, "drafts have changed an answer"
                number += 2 * count
                for drafted_too, run in ((False, plain), (True, drafts)):
                    seconds[drafted_too] += run.seconds
                    tokens[drafted_too] += run.tokens
                drafted, accepted = drafts.drafted, drafts.accepted
            rates = {kind: tokens[kind] / seconds[kind] for kind in seconds}
            results.append(
                {
                    "text": name,
                    "requests": count,
                    "off_tokens_s": round(rates[False], 1),
                    "on_tokens_s": round(rates[True], 1),
                    "ratio": round(rates[True] / rates[False], 2),
                    "drafted": drafted,
                    "accepted": accepted,
                }
            )
            print(json.dumps(results[-1]), flush=True)
    print(describe_machine())
    if options.output:
        save_json(options.output, results)
    engine.close()


def make_parser() -> argparse.ArgumentParser:
    parser = command("speculation", __doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--texts", default="edit,code,turns", metavar="NAME,...")
    parser.add_argument("--tokens", type=int, default=256, metavar="N", help="of each answer")
    parser.add_argument("--many", type=int, default=16, metavar="N", help="requests at once")
    parser.add_argument("--speculative", default="auto")
    parser.add_argument("--speculative-model", metavar="MODEL")
    parser.add_argument(
        "--drafts", type=int, default=16, metavar="N", help="drafted tokens per request and step"
    )
    parser.add_argument("--repeats", type=int, default=1, metavar="N")
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    return parser


if __name__ == "__main__":
    main()
