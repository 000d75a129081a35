"""Train an EAGLE-3 head for a small model on a CPU, from text that this repository has.

python -m benchmarks.checkpoints.train_eagle --output /tmp/head --minutes 8
python -m benchmarks.speculation --speculative model --speculative-model /tmp/head --drafts 4

The head learns what the model finds likely behind each token of the text, in windows, with its own features
in place of the model's for `--chain` tokens ("training-time test", Li et al. 2025, arXiv 2503.01840). It can
draft the tokens that are frequent in the text. Prints how often its j-th guess in a row is right, on windows
that it has not seen.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

from benchmarks.lib.command import command
from benchmarks.lib.eagle_head import HeadShape, TrainableHead
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.model_folder import model_folder
from engine.model_config.model_spec import ModelSpec
from router.api.generation.text.tokenizer import Tokenizer

_TEXTS: Final = ("docs/*.md", "engine/**/*.py", "router/**/*.py", "worker/**/*.py", "kv_transfer/**/*.py")
_HELD_OUT: Final = 8


def windows_of(tokenizer: Tokenizer, length: int) -> list[list[int]]:
    """All texts, cut into windows of `length` tokens, in random order."""
    files = sorted(file for pattern in _TEXTS for file in Path().glob(pattern))
    texts = tokenizer.encode_batch([file.read_text() for file in files], add_special_tokens=False)
    windows = [
        text[first : first + length] for text in texts for first in range(0, len(text) - length, length)
    ]
    random.Random(0).shuffle(windows)
    return windows


class Teacher:
    """The model: what the head reads of it, and what it finds likely."""

    def __init__(self, folder: Path, layers: tuple[int, ...]) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._layers = layers

    @torch.inference_mode()
    def read(self, tokens: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Of a head's rows: embeddings, hidden states, and the model's logits of what they guess."""
        ids = torch.tensor([tokens])
        output = self._model(ids, output_hidden_states=True)
        hidden = torch.cat([output.hidden_states[layer + 1][0] for layer in self._layers], -1)
        embedded: Tensor = self._model.get_input_embeddings()(ids)[0]
        return embedded[1:], hidden[:-1], output.logits[0, 1:]


def main() -> None:
    options = _parser().parse_args()
    folder = model_folder(options.model)
    spec = ModelSpec.from_folder(folder)
    windows = windows_of(Tokenizer.load(folder, vocab_size=spec.vocab_size), options.window)
    counts = Counter(token for window in windows for token in window)
    ids = torch.tensor(sorted(token for token, _ in counts.most_common(options.vocabulary)))
    shape = HeadShape(
        vocab_size=spec.vocab_size,
        draft_vocab_size=len(ids),
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        max_position=spec.max_position,
        layers=(1, spec.num_layers // 2 - 1, spec.num_layers - 4),
        norm_eps=spec.norm_eps,
    )
    torch.manual_seed(0)
    head, teacher = TrainableHead(shape, ids), Teacher(folder, shape.layers)
    optimizer = torch.optim.AdamW(head.parameters(), lr=options.rate, betas=(0.9, 0.95))
    began, steps, seconds = time.monotonic(), 0, 60 * options.minutes
    held_out, windows = windows[:_HELD_OUT], windows[_HELD_OUT:]
    while (passed := time.monotonic() - began) < seconds:
        for group in optimizer.param_groups:
            group["lr"] = options.rate * (1 - passed / seconds)
        loss = _loss(head, *teacher.read(windows[steps % len(windows)]), options.chain)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(head.parameters(), 0.5)
        optimizer.step()
        steps += 1
        if steps % 50 == 0:
            print(json.dumps({"steps": steps, "loss": round(loss.item(), 3)}), flush=True)
    head.save(options.output)
    right = _right(head, teacher, held_out, options.chain)
    print(json.dumps({"steps": steps, "tokens": steps * options.window, "right": right}))
    print(describe_machine())


def _loss(head: TrainableHead, embedded: Tensor, hidden: Tensor, logits: Tensor, chain: int) -> Tensor:
    """Cross-entropy with the model's own distribution over the draft vocabulary, of all steps."""
    wanted = logits.clone()[:, head.ids].softmax(-1)
    steps = head.chain(embedded.clone(), hidden.clone(), chain)
    losses = [functional.cross_entropy(step, wanted[first:]) for first, step in enumerate(steps)]
    return torch.stack([0.8**first * loss for first, loss in enumerate(losses)]).sum()


@torch.no_grad()
def _right(head: TrainableHead, teacher: Teacher, windows: list[list[int]], chain: int) -> list[float]:
    """How often the guess of each step of the chain is the model's most likely token."""
    hits, rows = torch.zeros(chain), torch.zeros(chain)
    for window in windows:
        embedded, hidden, logits = teacher.read(window)
        for step, guesses in enumerate(head.chain(embedded, hidden, chain)):
            hits[step] += (head.ids[guesses.argmax(-1)] == logits[step:].argmax(-1)).sum()
            rows[step] += len(guesses)
    return [round(share, 3) for share in (hits / rows).tolist()]


def _parser() -> argparse.ArgumentParser:
    parser = command("checkpoints.train_eagle", __doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=8.0, metavar="N")
    parser.add_argument("--window", type=int, default=256, metavar="TOKENS")
    parser.add_argument("--chain", type=int, default=3, metavar="N", help="guesses in a row")
    parser.add_argument("--vocabulary", type=int, default=8192, metavar="N", help="tokens that it can draft")
    parser.add_argument("--rate", type=float, default=5e-4)
    return parser


if __name__ == "__main__":
    main()
