"""What the flags say of access, before anything is started."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from router.api.access import Access, BadKeyFile
from router.config.settings import RouterConfig
from router.config.table import configured
from rpc.tls import BadCertificate
from tests.certificates import Authority


def test_without_flags_every_client_is_served_in_plaintext_and_loopback_gives_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert Access.load(RouterConfig(model="m")) == Access(keys=None, tls=None)
    assert not caplog.messages


def test_a_frontend_that_is_open_to_other_machines_is_pointed_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Access.load(configured({"model": "m", "host": "0.0.0.0"}))
    assert "--api-key-file" in caplog.text
    assert "--tls-cert" in caplog.text


def test_files_are_loaded_and_no_warning_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = Authority.make("ours").issue(tmp_path)
    keys = tmp_path / "keys"
    keys.write_text("0123456789abcdef\n")
    keys.chmod(0o600)
    metrics_keys = tmp_path / "metrics-keys"
    metrics_keys.write_text("fedcba9876543210\n")
    metrics_keys.chmod(0o600)
    admin_keys = tmp_path / "admin-keys"
    admin_keys.write_text("0011223344556677\n")
    admin_keys.chmod(0o600)
    settings = {
        "host": "0.0.0.0",
        "admin_key_file": str(admin_keys),
        "api_key_file": str(keys),
        "metrics_key_file": str(metrics_keys),
        "cors_origins": "https://chat.example.com, http://localhost:3000",
        "max_requests_per_key": 3,
        "tls_cert": str(files.certificate),
        "tls_key": str(files.key),
    }
    with caplog.at_level(logging.WARNING):
        access = Access.load(configured(settings))
    assert access.tls is not None
    assert access.tls.files == files.files
    assert access.keys is not None
    assert access.keys.identify("Bearer 0123456789abcdef").max_requests == 3
    assert access.admin_keys is not None
    assert access.admin_keys.find("Bearer 0011223344556677") is not None
    assert access.metrics_keys is not None
    assert access.metrics_keys.find("Bearer fedcba9876543210") is not None
    assert access.cors_origins == ("https://chat.example.com", "http://localhost:3000")
    assert not caplog.messages


def test_unusable_files_are_reported_with_their_flags(tmp_path: Path) -> None:
    with pytest.raises(BadKeyFile, match="--api-key-file /none: No such file"):
        Access.load(configured({"api_key_file": "/none"}))
    with pytest.raises(BadKeyFile, match="--metrics-key-file /none: No such file"):
        Access.load(configured({"metrics_key_file": "/none"}))
    with pytest.raises(BadCertificate, match="--tls-cert, --tls-key: /none: No such file"):
        Access.load(configured({"tls_cert": "/none", "tls_key": "/none"}))


async def test_a_key_file_that_changes_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    file.write_text("0123456789abcdef\n")
    access = Access.load(configured({"model": "m", "api_key_file": str(file)}))
    assert access.keys is not None
    caplog.set_level(logging.INFO)
    watch = asyncio.create_task(access.watch(0.01))
    await asyncio.sleep(0)
    try:
        for text, known in (
            ("fedcba9876543210\n", True),
            ("useless\n", True),
            ("0123456789abcdef\nab\n", True),
            ("0123456789abcdef\n", False),
        ):
            (tmp_path / "new").write_text(text)
            (tmp_path / "new").rename(file)
            before = len(caplog.messages)
            async with asyncio.timeout(30):
                while len(caplog.messages) == before:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert (access.keys.find("Bearer fedcba9876543210") is not None) is known
    finally:
        watch.cancel()
    assert "line 2: a key has at least 16" in caplog.text
