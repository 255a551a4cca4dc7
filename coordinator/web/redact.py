"""A specification as it may be shown: what looks like a secret is masked, a reference to one (`{secret: "env:…"}`,
`${file:…}`) is not, since it says where the secret is and nothing of it. Pure."""

from __future__ import annotations

import re
from typing import Any

from events.masking import MASK, SECRET_INSIDE, is_secret, shown_text

REFERENCE = re.compile(r"\$\{(env|file):[^}]+\}")
PLACE = re.compile(r"(env|file):.+")
DEEPEST = 100


def redacted(value: Any, name: str = "", depth: int = 0) -> Any:
    """Whatever is under a name that says secret is masked, however deep."""
    if depth > DEEPEST:
        return MASK
    if isinstance(value, dict):
        if _is_reference(value):
            return value
        return {
            key: redacted(each, f"{name}.{key}" if is_secret(name) else key, depth + 1) for key, each in value.items()
        }
    if isinstance(value, list):
        return [redacted(each, name, depth + 1) for each in value]
    if isinstance(value, str):
        return value if REFERENCE.fullmatch(value) else _shown(name, value)
    return MASK if is_secret(name) and value is not None and not isinstance(value, bool) else value


def _shown(name: str, value: str) -> str:
    return MASK if value and (is_secret(name) or SECRET_INSIDE.search(value)) else shown_text(value)


def _is_reference(value: dict[str, Any]) -> bool:
    place = value.get("secret")
    return len(value) == 1 and isinstance(place, str) and PLACE.fullmatch(place) is not None
