"""The web page's guard: who may ask what, under which names, and from which pages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.web.guard import Guard, OpenToTheWorld, WeakToken, is_loopback
from coordinator.web.redact import redacted
from events.masking import MASK

OPERATE, READ = "operate-0123456789abcdef", "look-only-0123456789abcdef"
HERE = {"host": "127.0.0.1:8460"}
JSON = {"content-type": "application/json"}
OWN = {"x-detent-request": "1"}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def status(guard: Guard, method: str, headers: dict[str, str], *, opens: bool = False) -> int:
    refused = guard.refusal(method, HERE | headers, opens=opens)
    return refused.status if refused else 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "machine.example", ""])
def test_it_does_not_start_open_to_the_world(host: str) -> None:
    with pytest.raises(OpenToTheWorld, match=r"web\.token_file"):
        Guard(host).check()
    Guard(host, operate_token=OPERATE).check()
    Guard(host, read_token=READ).check()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_on_loopback_it_may(host: str) -> None:
    assert is_loopback(host)
    Guard(host).check()


@pytest.mark.parametrize("token", ["short", "with a\nbreak in the middle", "käse" * 8])
def test_tokens_that_can_be_guessed_or_not_sent_are_refused(token: str) -> None:
    with pytest.raises(WeakToken):
        Guard(operate_token=token).check()


def test_the_two_tokens_differ() -> None:
    with pytest.raises(WeakToken, match="the same"):
        Guard(operate_token=OPERATE, read_token=OPERATE).check()


def test_without_a_token_everyone_on_this_machine_operates() -> None:
    assert status(Guard(), "GET", {}) == 200
    assert status(Guard(), "POST", JSON | OWN) == 200


def test_roles() -> None:
    guard = Guard("0.0.0.0", operate_token=OPERATE, read_token=READ)
    for headers, reads, operates in (
        ({}, 401, 401),
        (bearer("wrong-0123456789abcdef"), 401, 401),
        (bearer(""), 401, 401),
        ({"authorization": f"Basic {OPERATE}"}, 401, 401),
        (bearer(READ), 200, 403),
        (bearer(OPERATE), 200, 200),
        ({"authorization": f"bearer  {OPERATE} "}, 200, 200),
    ):
        assert status(guard, "GET", headers) == reads, headers
        assert status(guard, "POST", headers | JSON) == operates, headers
    assert status(guard, "GET", {}, opens=True) == 200, "the page's own files hold no data"
    assert status(guard, "POST", JSON, opens=True) == 403


def test_a_missing_token_is_no_token() -> None:
    """An empty header must not match a token that is not set."""
    only_reads = Guard("0.0.0.0", read_token=READ)
    assert status(only_reads, "POST", bearer("") | JSON) == 401
    assert only_reads.role(bearer(READ)) == "read"
    only_operates = Guard("0.0.0.0", operate_token=OPERATE)
    assert only_operates.role(bearer("")) == ""


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8460", "127.0.0.1.evil.example", "", "a@127.0.0.1", "[", "x:y"]
)
def test_names_that_were_pointed_here_are_refused(host: str) -> None:
    assert status(Guard(), "GET", {"host": host}) == 421
    assert status(Guard(), "GET", {"host": host}, opens=True) == 421


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:8460", "[::1]:8460", "192.0.2.7:80", "detent.example", "mine"]
)
def test_own_names_are_answered(host: str) -> None:
    assert status(Guard("mine", names=("detent.example",)), "GET", {"host": host}) == 200


def test_foreign_pages_can_not_command() -> None:
    guard, meant = Guard(), JSON | OWN
    assert status(guard, "POST", meant | {"origin": "http://127.0.0.1:8460"}) == 200
    assert status(guard, "POST", meant | {"origin": "http://127.0.0.1:9999"}) == 403
    assert status(guard, "POST", meant | {"origin": "https://evil.example"}) == 403
    assert status(guard, "POST", meant | {"origin": "null"}) == 403
    assert status(guard, "POST", meant | {"sec-fetch-site": "cross-site"}) == 403
    assert status(guard, "POST", meant | {"sec-fetch-site": "same-site"}) == 403
    assert status(guard, "POST", meant | {"sec-fetch-site": "same-origin"}) == 200


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_what_a_form_can_send_is_no_command(kind: str) -> None:
    assert status(Guard(), "POST", {"content-type": kind} | OWN) == 415
    assert status(Guard(), "POST", JSON) == 403
    assert status(Guard(), "POST", {"content-type": "Application/JSON; charset=utf-8"} | OWN) == 200


@given(st.text(max_size=40), st.text(max_size=40), st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "TRACE"]))
def test_nobody_gets_in_by_chance(token: str, host: str, method: str) -> None:
    guard = Guard("0.0.0.0", operate_token=OPERATE, read_token=READ)
    assert status(guard, method, {"authorization": token, "host": host} | JSON | OWN) in (401, 403, 421)


def test_tokens_are_never_shown() -> None:
    assert OPERATE not in repr(Guard(operate_token=OPERATE, read_token=READ))


def test_secrets_of_a_specification_are_masked_and_references_are_not() -> None:
    shown = redacted(
        {
            "source": [{"name": "in", "options": {"url": "jdbc://u:p@host/db", "password": "hush", "table": "t"}}],
            "sink": [{"options": {"auth": {"token": {"value": "hush", "kind": 3}}, "password": "${env:DB_PASSWORD}"}}],
            "env": {"parallelism": 2, "secret": True},
            "list": ["passwd=hush", "plain"],
            "password": {"secret": "env:DB_PASSWORD"},
            "token": {"secret": "hush"},
        }
    )
    assert "hush" not in repr(shown)
    assert "u:p" not in repr(shown)
    source, sink = shown["source"][0]["options"], shown["sink"][0]["options"]
    assert (source["password"], source["table"]) == (MASK, "t")
    assert sink["password"] == "${env:DB_PASSWORD}"
    assert sink["auth"]["token"] == {"value": MASK, "kind": MASK}
    assert shown["env"] == {"parallelism": 2, "secret": True}
    assert shown["list"] == [MASK, "plain"]
    assert shown["password"] == {"secret": "env:DB_PASSWORD"}
    assert shown["token"] == {"secret": MASK}
