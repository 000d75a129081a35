"""Count how much of the JSON-Schema-Test-Suite is enforced: `python scripts/schema_suite.py FOLDER`.

FOLDER is the suite's `tests/draft2020-12`. The source package of jsonschema on PyPI contains it:
`pip download --no-deps --no-binary jsonschema jsonschema`, then unpack, then `json/tests/draft2020-12`.

A schema counts as accepted if a request with it would be. Every instance of an accepted schema is then
followed byte by byte. An invalid instance must not be accepted; formats that are annotations here are counted
apart.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from engine.errors import GrammarError
from engine.grammar.grammar import Grammar, GrammarKind
from engine.grammar.json_schema.patterns import BUILT_IN, FORMATS
from engine.grammar.source import LIMITS, check_grammar, source_of


def main(folder: Path) -> int:
    counts: Counter[str] = Counter()
    vocabulary = LLTokenizer("byte")
    for file in sorted(folder.rglob("*.json")):
        for group in json.loads(file.read_text()):
            counts["schemas"] += 1
            grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(group["schema"]))
            try:
                check_grammar(grammar)
            except GrammarError:
                continue
            counts["accepted schemas"] += 1
            start = LLMatcher(vocabulary, source_of(grammar), log_level=0, limits=LIMITS)
            for test in group["tests"]:
                text = json.dumps(test["data"], ensure_ascii=False)
                follows = _follows(start.deep_copy(), vocabulary, text)
                outcome = _outcome(group["schema"], test["valid"], follows)
                counts[outcome] += 1
                if outcome == "invalid, accepted":
                    print(f"{file.name}: {group['description']}: {test['description']}: {text}")
    for name, count in counts.items():
        print(f"{count:6} {name}")
    return int(counts["invalid, accepted"] > 0)


def _follows(matcher: LLMatcher, vocabulary: LLTokenizer, text: str) -> bool:
    tokens = vocabulary.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and bool(matcher.is_accepting())


def _outcome(schema: Any, is_valid: bool, follows: bool) -> str:
    outcome = f"{'valid' if is_valid else 'invalid'}, {'accepted' if follows else 'refused'}"
    asserted = BUILT_IN | FORMATS.keys()
    if outcome == "invalid, accepted" and isinstance(schema, dict) and "format" in schema:
        return outcome if schema["format"] in asserted else "invalid by a format that is an annotation"
    return outcome


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
