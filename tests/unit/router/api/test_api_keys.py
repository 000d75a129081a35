"""API keys: what a file of them may look like, whom they let in, and how much each may do at a time."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.access import ApiKeys, BadKeyFile
from router.api.generation.tenants import Share, Tenant
from router.errors import InvalidRequest, Overloaded, Unauthenticated

ALICE, BOB = "alice-0123456789", "bob-abcdefghijkl"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# who is who\n\n{ALICE}\n  {BOB}  \n")
    path.chmod(0o600)
    return path


def test_a_client_is_known_by_its_key_and_named_by_its_line(file: Path) -> None:
    keys = ApiKeys.load(file)
    assert keys.identify(f"Bearer {ALICE}").name == "key-3"
    assert keys.identify(f"bearer  {BOB} ").name == "key-4"
    assert keys.identify(f"Bearer {ALICE}") is keys.identify(f"Bearer {ALICE}")


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer ", ALICE, f"Basic {ALICE}", f"Bearer {ALICE}x", "Bearer #"]
)
def test_all_other_keys_are_refused(file: Path, authorization: str | None) -> None:
    with pytest.raises(Unauthenticated):
        ApiKeys.load(file).identify(authorization)


@given(st.text())
def test_random_bytes_are_refused_as_a_wrong_key_without_an_error(text: str) -> None:
    with pytest.raises(Unauthenticated):
        ApiKeys({ALICE: "alice"}).identify(text)


def test_keys_are_kept_in_no_readable_form() -> None:
    keys, again = ApiKeys({ALICE: "alice"}), ApiKeys({ALICE: "alice"})
    assert ALICE.encode() not in b"".join(keys._tenants)
    assert keys._tenants.keys().isdisjoint(again._tenants)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "has no key in it"),
        ("# nothing\n\n", "has no key in it"),
        (f"{ALICE}\nshort\n", "line 2: a key has at least 16"),
        (f"{ALICE} {BOB}\n", "line 1"),
        ("schlüssel-0123456789\n", "ASCII"),
    ],
)
def test_the_error_for_an_invalid_file_contains_no_keys(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "keys"
    path.write_text(content)
    with pytest.raises(BadKeyFile, match=words) as error:
        ApiKeys.load(path)
    assert ALICE not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadKeyFile, match=r"--api-key-file .*none: No such file"):
        ApiKeys.load(tmp_path / "none")


def test_a_world_readable_file_gives_a_warning(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ApiKeys.load(file)
        assert not caplog.messages
        file.chmod(0o644)
        ApiKeys.load(file)
    assert "can be read by every user" in caplog.text


def test_a_client_runs_as_many_completions_as_it_may_and_gets_its_room_back() -> None:
    tenant = Tenant("key-1", max_requests=4)
    with tenant.request(1):
        with tenant.request(3), pytest.raises(Overloaded), tenant.request(1):
            pass
        tenant.require_room(3)
        with pytest.raises(Overloaded):
            tenant.require_room(4)
    assert tenant.running == 0


def test_a_request_that_never_fits_is_refused_for_good() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        Tenant("key-1", max_requests=4).require_room(5)
    assert refusal.value.param == "n"
    Tenant("key-1").require_room(5)


def test_one_client_s_requests_are_no_other_s(file: Path) -> None:
    keys = ApiKeys.load(file, max_requests=1)
    with keys.identify(f"Bearer {ALICE}").request(1):
        keys.identify(f"Bearer {BOB}").require_room(1)


def test_a_line_may_say_which_priorities_its_key_may_set(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{ALICE} priority=10\n{BOB}\n")
    keys = ApiKeys.load(path)
    assert [keys.identify(f"Bearer {key}").max_priority for key in (ALICE, BOB)] == [10, 0]
    path.write_text(f"{ALICE} priority=high\n")
    with pytest.raises(BadKeyFile, match="line 1"):
        ApiKeys.load(path)


def test_a_line_may_limit_the_requests_of_its_key_and_another_limit_counts_when_it_is_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{ALICE} requests=2 priority=1\n{BOB}\n")
    keys = ApiKeys.load(path, max_requests=1)
    alice, bob = (keys.identify(f"Bearer {key}") for key in (ALICE, BOB))
    assert (alice.max_requests, alice.max_priority, bob.max_requests) == (2, 1, 1)
    with alice.request(2):
        path.write_text(f"{ALICE} requests=3\n{BOB}\n")
        keys.reload()
        alice.require_room(1)
        path.write_text(f"{ALICE}\n{BOB}\n")
        keys.reload()
        with pytest.raises(Overloaded):
            alice.require_room(1)
    for limit in ("requests=0", "requests=-1", "requests=many", "request=2"):
        path.write_text(f"{ALICE} {limit}\n")
        with pytest.raises(BadKeyFile, match="line 1: after the key"):
            ApiKeys.load(path)


def test_a_file_that_is_read_again_adds_and_removes_keys(file: Path) -> None:
    keys = ApiKeys.load(file, max_requests=1)
    file.write_text(f"carol-0123456789\n{BOB} priority=3\n")
    bob = keys.identify(f"Bearer {BOB}")
    with bob.request(1):
        keys.reload()
        with pytest.raises(Unauthenticated):
            keys.identify(f"Bearer {ALICE}")
        assert keys.identify("Bearer carol-0123456789").name == "key-1"
        assert keys.identify(f"Bearer {BOB}").name == "key-2"
        keys.identify(f"Bearer {BOB}").require_priority(3)
        with pytest.raises(Overloaded):
            keys.identify(f"Bearer {BOB}").require_room(1)  # its running request still counts


def test_a_file_that_cannot_be_used_any_more_leaves_the_keys_as_they_were(file: Path) -> None:
    keys = ApiKeys.load(file)
    file.write_text("short\n")
    with pytest.raises(BadKeyFile, match="line 1"):
        keys.reload()
    assert keys.identify(f"Bearer {ALICE}").name == "key-3"


@pytest.mark.parametrize(("limit", "routers"), [(64, 2), (7, 3), (100, 8), (5, 5)])
def test_the_parts_of_all_routers_add_up_to_the_limit_of_a_key(limit: int, routers: int) -> None:
    parts = [Share(lambda index=index: (index, routers)).of(limit) for index in range(routers)]
    assert sum(parts) == limit
    assert max(parts) - min(parts) <= 1


def test_a_limit_below_the_number_of_routers_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    share = Share(lambda: (0, 3))
    assert [share.of(1), share.of(1)] == [1, 1]
    (record,) = caplog.records
    assert record.getMessage().startswith("a key's limit of 1 requests is less than the 3 routers")
    caplog.clear()
    Share(lambda: (0, 3)).of(3)
    assert not caplog.records


def test_a_request_for_many_completions_runs_where_a_router_has_a_smaller_part(file: Path) -> None:
    keys = ApiKeys.load(file, max_requests=4)
    keys.share.place = lambda: (0, 2)
    alice = keys.identify(f"Bearer {ALICE}")
    with alice.request(3), pytest.raises(Overloaded, match="may have 2"):
        alice.require_room(1)
    with alice.request(1):
        alice.require_room(1)
