from __future__ import annotations

import pytest

from router.config.flags.text_settings import is_origin, origins_of


@pytest.mark.parametrize(
    "name",
    ["*", "http://localhost:3000", "https://chat.example.com", "http://[::1]:8080", "http://10.0.0.1"],
)
def test_what_a_browser_may_send_is_an_origin(name: str) -> None:
    assert is_origin(name)


@pytest.mark.parametrize(
    "name",
    [
        "chat.example.com",
        "https://",
        "https://a/",
        "https://a/chat",
        "https://a?b",
        "https://me@a",
        "https://a:443",
        "http://a:80",
        "http://a:99999",
        "https://*.example.com",
        "ftp://a",
        "null",
        "https://[",
    ],
)
def test_what_no_browser_sends_would_never_match_and_is_none(name: str) -> None:
    assert not is_origin(name)


def test_a_list_has_commas_between_and_any_case() -> None:
    assert origins_of(None) == origins_of(" , ") == ()
    assert origins_of("HTTP://A, https://b ,") == ("http://a", "https://b")
