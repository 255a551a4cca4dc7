"""Random settings that are allowed, by the catalogue itself: a setting that is added is tested with the others."""

from __future__ import annotations

import typing
from typing import Any, Literal

from hypothesis import strategies as st

import tests.strategies  # noqa: F401  (registers the profiles)
from detent.settings import ALWAYS_OURS, BY_NAME, CATALOGUE, TABLES, Setting
from detent.settings_load import REFERENCE
from events.masking import MASK, SECRET_INSIDE, is_secret, shown_text

PROPERTIES = ("security.protocol", "linger.ms", "ssl.ca.location", "debug", "client.id", "https.proxy", "log_level")
SECRETS = ("sasl.password", "sasl.username", "ssl.key.password", "ssl.key.pem")
# What TOML, the environment, shells and terminals care about, and some that nobody does.
LETTERS = "abXYZ019 ._-=:/@$%{}[]()<>#,;'\"\\\n\r\t\x1b\x7f\x85\u2028éß漢😀"
ENVIRON = {"FIRST_SECRET": "swordfish", "SECOND_SECRET": "líne one\nline two"}
# Fits every pattern that a setting has.
NAMES = st.text("aZ09._-", min_size=1, max_size=12)


def shows_as_it_is(text: str) -> bool:
    """Whether nothing of a text is masked or looked up."""
    plain = shown_text(text) == text and not SECRET_INSIDE.search(text)
    return plain and text != MASK and not REFERENCE.search(text)


def texts(minimum: int = 0) -> st.SearchStrategy[str]:
    return st.text(LETTERS, min_size=minimum, max_size=20).filter(shows_as_it_is)


def references() -> st.SearchStrategy[str]:
    return st.sampled_from([f"${{env:{name}}}" for name in ENVIRON])


def entries(table: Setting) -> st.SearchStrategy[dict[str, str]]:
    if table.name == "kafka.":
        assert not set(PROPERTIES + SECRETS) & set(ALWAYS_OURS)
        plain = st.dictionaries(st.sampled_from(PROPERTIES), texts() | references())
        return st.builds(dict.__or__, plain, st.dictionaries(st.sampled_from(SECRETS), references()))
    names = texts(1).filter(lambda name: not is_secret(name))
    return st.dictionaries(names, texts() | references(), max_size=3)


def spans(shards: int) -> st.SearchStrategy[str]:
    numbers = st.integers(0, shards - 1)
    span = st.tuples(numbers, numbers).map(lambda pair: f"{min(pair)}-{max(pair)}")
    return st.just("all") | st.lists(numbers.map(str) | span, min_size=1, max_size=4).map(",".join)


def value_of(setting: Setting) -> st.SearchStrategy[Any]:
    if typing.get_origin(setting.kind) is Literal:
        return st.sampled_from(typing.get_args(setting.kind))
    if setting.kind is int:
        return st.integers(setting.meta.ge, setting.meta.le)
    if setting.is_list:
        return st.lists(st.sampled_from(["a", "_b", "é.c_1", "x.y.z"]), max_size=3)
    if setting.name == "worker.engine":
        return st.sampled_from(["workers.trial:TrialEngine", "é.c_1:Engine"])
    if setting.name.endswith(".health_address"):
        hosts = st.sampled_from(["localhost", "10.0.0.1", "a-b.example", "[::1]"])
        return st.builds(lambda host, port: f"{host}:{port}", hosts, st.integers(0, 65_535))
    return texts() if setting.meta.pattern is None else NAMES


VALUES = {name: value_of(setting) for name, setting in BY_NAME.items() if name != "coordinator.shards"}
TABLES_BY_NAME = {table.name: entries(table) for table in TABLES}
SOME = st.lists(st.sampled_from([*VALUES, *TABLES_BY_NAME]), unique=True)


@st.composite
def allowed_settings(draw: st.DrawFn) -> dict[str, Any]:
    """Values by name, entries of tables included; some settings are left out."""
    chosen: dict[str, Any] = {}
    for name in draw(SOME):
        if name in TABLES_BY_NAME:
            chosen |= {name + entry: value for entry, value in draw(TABLES_BY_NAME[name]).items()}
        else:
            chosen[name] = draw(VALUES[name])
    defaults = {setting.name: setting.default for setting in CATALOGUE}
    for longer, shorter, times in (
        ("coordinator.detection_ms", "coordinator.beat_ms", 2),
        ("worker.lease_ms", "worker.heartbeat_ms", 2),
        ("worker.repeat_cap_ms", "worker.repeat_ms", 1),
    ):
        least = times * (chosen | defaults | chosen)[shorter]
        chosen[longer] = max(chosen.get(longer, defaults[longer]), least)
    chosen["coordinator.shards"] = draw(spans(chosen.get("kafka.shards", defaults["kafka.shards"])))
    return chosen
