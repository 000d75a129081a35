"""Checks of --object-kv-url at the start."""

from __future__ import annotations

from typing import Any

import pytest

from router.config.flags.validation import problems_of
from router.config.settings import RouterConfig

URL = "s3://bucket/prefix"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"host_kv_gb": 0.0}, "needs --host-kv-gb"),
        ({"disk_kv_dir": "/kv"}, "the same tier"),
        ({"object_kv_url": "http://bucket"}, "use s3://BUCKET/PREFIX"),
    ],
)
def test_an_object_store_that_makes_no_sense_is_refused(settings: dict[str, Any], problem: str) -> None:
    given = {"model": "m", "host_kv_gb": 1.0, "object_kv_url": URL} | settings
    assert any(problem in found for found in problems_of(RouterConfig(**given)))


def test_without_its_client_an_object_store_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.config.flags.validation.find_spec", lambda _: None)
    found = problems_of(RouterConfig(model="m", host_kv_gb=1.0, object_kv_url=URL))
    assert any("boto3" in problem and ".[object-kv]" in problem for problem in found)
