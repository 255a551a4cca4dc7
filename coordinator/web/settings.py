"""What an operator may choose of the web's process."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.web.guard import Guard


@dataclass(frozen=True)
class WebSettings:
    guard: Guard = field(default_factory=Guard)
    port: int = 0
    lease_ms: int = 10_000  # after how long without a word a worker counts as silent
    version: str = ""
