"""What --worker-env takes."""

from __future__ import annotations

import pytest

from router.config.flags.text_settings import WrongEnvironment, environment_of


def test_variables_are_separated_by_spaces_and_quoted_as_in_a_shell() -> None:
    assert environment_of("UCX_TLS=rc,cuda_copy NAME='two words' EMPTY=") == {
        "UCX_TLS": "rc,cuda_copy",
        "NAME": "two words",
        "EMPTY": "",
    }
    assert environment_of(None) == environment_of("") == {}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("UCX_TLS", "not KEY=VALUE"),
        ("=x", "not KEY=VALUE"),
        ("UCX-TLS=x", "not KEY=VALUE"),
        ("A='x", "quote it"),
        ("A=1 A=2", "given twice"),
        ("CUDA_VISIBLE_DEVICES=0", "Ray sets"),
        ("RAY_AUTH_MODE=token", "Ray sets"),
    ],
)
def test_what_is_no_environment_is_refused(setting: str, words: str) -> None:
    with pytest.raises(WrongEnvironment, match=words):
        environment_of(setting)
