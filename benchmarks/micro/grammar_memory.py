"""Memory of compiled grammars, compared with the estimate that limits a worker's cache.

    python -m benchmarks.micro.grammar_memory

Bytes allocated by the process (glibc's `mallinfo2`) for several grammars of each kind: after the first mask,
and after random outputs of up to 150 tokens.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from typing import Final

import numpy as np

from benchmarks.lib.command import command
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.memory.allocated import allocated_bytes
from benchmarks.lib.model_folder import model_folder
from engine.errors import GrammarError
from engine.grammar.compiler import GrammarCompiler, estimated_bytes
from engine.grammar.grammar import Grammar, GrammarKind
from engine.grammar.matcher import Matcher, fill_masks
from engine.grammar.source import source_of
from engine.model_config.model_spec import ModelSpec

_OUTPUTS: Final = 3
_LONGEST: Final = 150
_rng: Final = random.Random(1)


def _word(length: int = 8) -> str:
    return "".join(_rng.choices(string.ascii_lowercase, k=length))


def _object(properties: int) -> dict[str, object]:
    kinds = ("string", "integer", "number", "boolean")
    named = {_word(): {"type": _rng.choice(kinds)} for _ in range(properties)}
    return {"type": "object", "properties": named}


def _schema(schema: Callable[[], object]) -> Callable[[], Grammar]:
    return lambda: Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema()))


_MAKERS: Final[dict[str, Callable[[], Grammar]]] = {
    "schema, 1 property": _schema(lambda: _object(1)),
    "schema, 10 properties": _schema(lambda: _object(10)),
    "schema, 100 properties": _schema(lambda: _object(100)),
    "schema, 1,000 properties": _schema(lambda: _object(1000)),
    "schema, 50 alternatives": _schema(lambda: {"anyOf": [_object(8) for _ in range(50)]}),
    "schema, 1,000 values": _schema(lambda: {"enum": [_word(20) for _ in range(1000)]}),
    "schema, `multipleOf: 9973`": _schema(lambda: {"multipleOf": 9973, "title": _word(), "type": "number"}),
    "choice of 10": lambda: Grammar(GrammarKind.CHOICE, json.dumps([_word() for _ in range(10)])),
    "choice of 3,000": lambda: Grammar(GrammarKind.CHOICE, json.dumps([_word() for _ in range(3000)])),
    "regex, a date": lambda: Grammar(GrammarKind.REGEX, rf"{_word(3)} \d{{4}}-\d{{2}}-\d{{2}}"),
    "regex, `[a-z]{1,2000}`": lambda: Grammar(GrammarKind.REGEX, f"[a-z]{{1,2000}}{_word(3)}"),
    "grammar of sums": lambda: Grammar(
        GrammarKind.EBNF,
        f'root ::= "{_word()}" sum\nsum ::= term ("+" term)*\nterm ::= [0-9]+ | "(" sum ")"',
    ),
}


def _follow(matcher: Matcher, vocab_size: int) -> None:
    """Random tokens that the grammar allows, up to its end."""
    masks = np.zeros((1, -(-vocab_size // 32)), dtype=np.int32)
    output: list[int] = []
    while len(output) < _LONGEST and not matcher.inner.is_stopped():
        if isinstance(fill_masks([matcher], masks)[0], GrammarError):
            return
        allowed = np.flatnonzero(np.unpackbits(masks.view(np.uint8), bitorder="little"))
        output.append(int(allowed[_rng.randrange(len(allowed))]))
        try:
            matcher.advance(output)
        except GrammarError:
            return


def main() -> None:
    parser = command("micro.grammar_memory", __doc__)
    parser.add_argument("--model", default="smollm2", help="its vocabulary is used")
    parser.add_argument("--each", type=int, default=8, metavar="N", help="grammars of each kind")
    options = parser.parse_args()
    folder = model_folder(options.model)
    spec = ModelSpec.from_folder(folder)
    print(f"{describe_machine()}; vocabulary {spec.vocab_size}\n")
    print("| grammar | source, bytes | estimated, kB | compiled, kB | after outputs, kB |")
    print("| --- | --- | --- | --- | --- |")
    for name, make in _MAKERS.items():
        compiler = GrammarCompiler(folder, spec, capacity=1 << 40)
        compiler.load()
        grammars = [make() for _ in range(options.each)]
        sources = [source_of(grammar) for grammar in grammars]
        estimated = sum(map(estimated_bytes, grammars, sources))
        before = allocated_bytes()
        for grammar in grammars:
            compiler.matcher(grammar)
        compiled = allocated_bytes() - before
        for grammar in grammars:
            for _ in range(_OUTPUTS):
                _follow(compiler.matcher(grammar), spec.vocab_size)
        followed = allocated_bytes() - before
        size = sum(map(len, sources)) // options.each
        kilobytes = (f"{value / options.each / 1e3:,.0f}" for value in (estimated, compiled, followed))
        print(f"| {name} | {size:,} | {' | '.join(kilobytes)} |", flush=True)


if __name__ == "__main__":
    main()
