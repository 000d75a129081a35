"""docs/coming_from.md: its tables are those of the code, and the flags that it names are accepted."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from router.config.flags.foreign_flags import TRANSLATIONS
from router.config.settings import RouterConfig
from router.config.table import SETTINGS

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = (ROOT / "docs" / "coming_from.md").read_text()


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    file = ROOT / "scripts" / "coming_from_tables.py"
    spec = importlib.util.spec_from_file_location("coming_from_tables", file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_code(tables: ModuleType) -> None:
    assert tables.with_tables(DOCUMENT) == DOCUMENT, "run: python scripts/coming_from_tables.py"


def test_every_table_is_in_the_document(tables: ModuleType) -> None:
    emptied = re.sub(r"(<!-- \w+: written by [^>]+>\n).*?(<!-- end)", r"\1\2", DOCUMENT, flags=re.DOTALL)
    assert tables.with_tables(emptied) == DOCUMENT
    assert DOCUMENT.count("<!-- end of ") == 7


def test_the_flags_of_the_document_are_known() -> None:
    """Flags of the text; `--FLAG.FIELD` stands for any."""
    text = DOCUMENT.partition("## Commands")[0]
    named = set(re.findall(r"--[a-z][a-z-]+", text))
    assert named <= {setting.flag for setting in SETTINGS.values()} | TRANSLATIONS.keys()


def test_the_address_is_the_default() -> None:
    frontend = RouterConfig().frontend
    assert f"| {frontend.host}, port {frontend.http_port};" in DOCUMENT
