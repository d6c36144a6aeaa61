"""How far a run is, for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: `done` of `total` (None: unknown) in a stage such as "scan" or "embed"."""

    stage: str
    done: int
    total: int | None
    current: str | None = None
