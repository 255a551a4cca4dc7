"""Settings as text: as the lines of a TOML file, as JSON, and as the page docs/configuration.md. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from detent.settings import ALWAYS_OURS, BY_NAME, CATALOGUE, Setting, table_of

ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
COLUMN = 60
TABLE_ENTRIES = {"kafka.": "property", "worker.labels.": "label", "worker.spark.conf.": "property"}

INTRODUCTION = """\
# Configuration

Generated from `detent/settings.py` by `make docs`; a test keeps it current.

Every setting has a default; nothing has to be set. What is set wins in this order: flags, then the environment, then
the file, then the default. `detent config show` prints what holds here and where each value was said, as a TOML file
with the origin behind each line. What is wrong is told all at once, each with its place, before anything starts.

```sh
.venv/bin/detent config show
.venv/bin/detent config show --changed
.venv/bin/detent config show --json --set coordinator.detection_ms=300
```

## The file

TOML. `--config FILE` names it, else the variable `DETENT_CONFIG`, else it is `detent.toml` in the current directory, if
there is one. Relative paths in it start where the process does.

```toml
state_dir = "/var/lib/detent"

[kafka]
bootstrap_servers = "kafka-1:9093,kafka-2:9093"
security.protocol = "SASL_SSL"
ssl.ca.location = "/etc/detent/ca.pem"
sasl.mechanism = "SCRAM-SHA-512"
sasl.username = "detent"
sasl.password = "${file:/run/secrets/kafka-password}"

[coordinator]
detection_ms = 300

[worker]
slots = 8
labels.zone = "eu-1"

[worker.spark]
master = "spark://spark:7077"
conf."spark.executor.memory" = "4g"
```

## The environment

`DETENT_` and the setting's name in capitals, with two underscores for each dot: `DETENT_COORDINATOR__DETECTION_MS=300`.
The same for what you name yourself: `DETENT_KAFKA__SECURITY__PROTOCOL=SSL` is `kafka.security.protocol`, and
`DETENT_WORKER__LABELS__DISK_TYPE=ssd` is `worker.labels.disk_type`. Where capitals matter, as in many properties of
Spark, write that part as it is: `DETENT_WORKER__SPARK__CONF__spark__eventLog__enabled=true`. The one exception is
`state_dir`, which is `DETENT_STATE`.

An empty variable counts as not set. Other variables that begin with `DETENT_` are left alone (Kubernetes sets some),
but one that is a setting with too few underscores is an error.

## Flags

`--set NAME=VALUE`, as often as needed; the last one counts. Options such as `--state-dir` set what their help says.

In flags and variables a list is written `a,b`; a number may have underscores, as in `10_000`.

## References and secrets

A value may hold `${env:NAME}` or `${file:/path}`, which stand for the variable's value and for the file's content
without line ends behind it. One that is missing or empty is an error. In `worker.spark.conf`, references of other kinds
are left to Spark. For secrets a reference is the better way: a flag can be seen by all users of the machine.

Wherever settings are shown, secrets are masked: all of `kafka.sasl.*` but the mechanism, whatever has password, secret,
token or the like in its name, private keys, and logins in addresses. A reference is shown as it was written.
"""

KAFKA_NOTE = """\
Any property of librdkafka passes through, spelled as there: `kafka.security.protocol`, `kafka.ssl.ca.location`,
`kafka.linger.ms`. It wins over what Detent sets by itself. Before anything connects the client is asked whether it
takes them. These can't be set, since what Detent promises hangs on them:
"""


def toml_string(text: str) -> str:
    """A TOML string in which nothing that can't be printed stands as it is."""
    letters = (ESCAPES.get(c) or (c if c.isprintable() else f"\\U{ord(c):08X}") for c in text)
    return f'"{"".join(letters)}"'


def toml_value(value: Any) -> str:
    if isinstance(value, str):
        return toml_string(value)
    if isinstance(value, list):
        return f"[{', '.join(toml_value(part) for part in value)}]"
    return f"{value:_}" if value >= 10_000 else str(value)


def toml_key(name: str) -> str:
    table = None if name in BY_NAME else table_of(name)
    return name if table is None else table.name + toml_string(name.removeprefix(table.name))


def toml_lines(values: Mapping[str, Any], origin: Mapping[str, str]) -> list[str]:
    """Lines that could be pasted into detent.toml, secrets apart; where each came from as a comment."""
    assigned = {name: f"{toml_key(name)} = {toml_value(value)}" for name, value in values.items()}
    width = min(COLUMN, max(map(len, assigned.values()), default=0))
    return [f"{line:<{width}}  # {_printable(origin[name])}" for name, line in assigned.items()]


def json_text(values: Mapping[str, Any], origin: Mapping[str, str]) -> str:
    """One object: for each name its value and where it came from."""
    return json.dumps({name: {"value": value, "origin": origin[name]} for name, value in values.items()}, indent=2)


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)


def page() -> str:
    """docs/configuration.md."""
    parts = [INTRODUCTION]
    sections: dict[str, list[Setting]] = {}
    for setting in CATALOGUE:
        sections.setdefault(setting.path[0] if len(setting.path) > 1 else "", []).append(setting)
    for section, settings in sections.items():
        parts.append(f"## `{section}`\n" if section else "## All processes\n")
        parts.append(
            "| setting | default | may be | what it does |\n|---|---|---|---|\n" + "".join(map(_row, settings))
        )
        if section == "kafka":
            parts.append(KAFKA_NOTE)
            parts.append("".join(f"- `{name}`: {why}\n" for name, why in ALWAYS_OURS.items()))
    return "\n".join(parts)


def _row(setting: Setting) -> str:
    name = setting.name + f"<{TABLE_ENTRIES[setting.name]}>" if setting.is_table else setting.name
    default = "" if setting.is_table else f"`{toml_value(setting.default)}`"
    return f"| `{name}` | {default} | {setting.may_be} | {setting.says} |\n"
