"""Entity keys are readable, parse in exactly one way, and jobs land on the shard every Kafka client puts them on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.errors import DetentError, UnreadableKey
from events.keys import KINDS, MAX_NAME_BYTES, Entity, murmur2, named, order_key, parse, shard_of

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100).filter(
    lambda name: len(name.encode()) <= MAX_NAME_BYTES
)
NUMBERS = st.integers(0, 2**63 - 1)


@st.composite
def entities(draw: st.DrawFn) -> Entity:
    kind = draw(st.sampled_from(sorted(KINDS)))
    return named(kind, *(draw(NAMES if part is str else NUMBERS) for part in KINDS[kind]))


@given(entities())
def test_every_entity_has_one_key_and_every_key_one_entity(entity: Entity) -> None:
    assert parse(entity.key) == entity
    assert entity.key.isascii()


@given(st.binary(max_size=40) | entities().map(lambda e: e.key + b"x") | entities().map(lambda e: e.key[:-1]))
def test_bytes_that_name_no_entity_are_refused_or_canonical(key: bytes) -> None:
    try:
        assert parse(key).key == key
    except UnreadableKey as error:
        assert error.key is not None
        assert "names no entity" in str(error)


@pytest.mark.parametrize(
    "key", [b"", b"/", b"job", b"job/", b"nothing/a", b"task/a/0", b"task/a/0/x", b"task/a/00/1", b"job/a b",
            b"job/%61", b"job/%zz", b"job/a/b", b"task/a/-1/0", "job/ü".encode(), b"job/" + b"a" * 2000]
)  # fmt: skip
def test_keys_that_do_not_parse(key: bytes) -> None:
    with pytest.raises(UnreadableKey, match="names no entity"):
        parse(key)


def test_what_a_key_looks_like() -> None:
    assert named("task", "orders of 7/11", 0, 2).text == "task/orders%20of%207%2F11/0/2"
    assert named("task", "a", 0, 2).job == "a"
    assert named("worker", "w1").job == ""
    assert order_key("w/1", "job", 0, 3) == b"w%2F1/job/0/3"


@pytest.mark.parametrize(
    ("kind", "parts"), [("task", ("a",)), ("nothing", ()), ("job", (7,)), ("task", ("a", True, 0))]
)
def test_an_entity_that_cannot_be(kind: str, parts: tuple[str | int, ...]) -> None:
    with pytest.raises(UnreadableKey):
        named(kind, *parts)


# From Apache Kafka's own test of its hash (UtilsTest.testMurmur2).
KNOWN = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "a-little-bit-longer-string":
         -1486304829, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), KNOWN.items())
def test_murmur2_is_kafkas(text: str, expected: int) -> None:
    assert murmur2(text.encode()) == expected & 0xFFFFFFFF


@pytest.mark.parametrize("shards", [1, 4, 7])
def test_a_job_has_one_shard(shards: int) -> None:
    assert {shard_of(f"job-{i}", shards) for i in range(500)} == set(range(shards))
    with pytest.raises(DetentError, match="at least one shard"):
        shard_of("job", 0)
