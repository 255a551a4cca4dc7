"""Golden files: records as each released version encoded them. `python -m tests.golden` writes those of this version.

They are never changed: what a version has written stays on people's logs.
"""

from __future__ import annotations

import json
import random
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec

import schemas
from events import records
from events.codec import TOP_LEVEL, Codec

ROOT = Path(__file__).parent.parent
GOLDEN = Path(__file__).parent / "golden"


def versions() -> list[Path]:
    return sorted(path for path in GOLDEN.iterdir() if path.is_dir())


def sample(kind: Any, rng: random.Random) -> Any:
    """A value with something in every field. Unions are left to `samples`."""
    if isinstance(kind, dict) and kind["type"] == "array":
        return tuple(sample(kind["items"], rng) for _ in range(2))
    if isinstance(kind, dict) and kind["type"] == "map":
        return {"zone": sample(kind["values"], rng)}
    if isinstance(kind, str) and kind in schemas.files():
        return sample_record(kind, rng)
    number = rng.choice([0, 1, -1, 63, 64, 8191, 8192, 2**31 - 1, -(2**31)])
    return {"long": number << 20, "int": number, "string": f"text ü {number}", "bytes": bytes([0, 255, number % 7]),
            "boolean": number > 0, "null": None}[kind]  # fmt: skip


def sample_record(name: str, rng: random.Random, **given: Any) -> Any:
    fields = schemas.files()[name]["fields"]
    return getattr(records, name.removeprefix("detent."))(
        **{
            schemas.python_name(f["name"]): given[f["name"]] if f["name"] in given else sample(f["type"], rng)
            for f in fields
        }
    )


def samples(name: str, rng: random.Random) -> list[Any]:
    """A record for every branch of its unions."""
    fields = schemas.files()[f"detent.{name}"]["fields"]
    unions = {f["name"]: f["type"] for f in fields if isinstance(f["type"], list)}
    rounds = max((len(branches) for branches in unions.values()), default=1)
    return [
        sample_record(
            f"detent.{name}", rng, **{field: sample(kinds[i % len(kinds)], rng) for field, kinds in unions.items()}
        )
        for i in range(rounds)
    ]


def write(version: str) -> None:
    folder = GOLDEN / version
    if folder.exists():
        raise SystemExit(f"{folder} is there already: golden files are never changed. Raise the version.")
    folder.mkdir(parents=True)
    codec, rng = Codec(), random.Random(version)
    lines = [
        json.dumps(
            {"record": name, "encoded": codec.encode(record).hex(), "decoded": json.loads(msgspec.json.encode(record))}
        )
        for name in TOP_LEVEL
        for record in samples(name, rng)
    ]
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "schemas.json").write_text(json.dumps(codec.book.own, indent=1) + "\n")


if __name__ == "__main__":
    write(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    sys.exit(0)
