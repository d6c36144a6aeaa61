"""Server time of each search: one JSON line a query, if `capsearch ui --timing-log` is given.

The text of a query is never logged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter

VARIABLE = "CAPSEARCH_UI_TIMING_LOG"  # a file to append to; unset: no log


class Stopwatch:
    """Milliseconds of one run of the page, lap by lap."""

    def __init__(self) -> None:
        self._started = self._last = perf_counter()
        self.laps_ms: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """End a lap; laps with the same name add up."""
        now = perf_counter()
        self.laps_ms[name] = self.laps_ms.get(name, 0.0) + 1e3 * (now - self._last)
        self._last = now

    def total_ms(self) -> float:
        """Milliseconds since the run began."""
        return 1e3 * (perf_counter() - self._started)


def log(watch: Stopwatch, engine_ms: Mapping[str, float], facts: Mapping[str, object]) -> None:
    """Append one line about a search: laps and total of the page, parts of the engine."""
    target = os.environ.get(VARIABLE)
    if not target:
        return
    line = {
        "at": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        **facts,
        **{f"{name}_ms": round(value, 2) for name, value in engine_ms.items()},
        **{f"page_{name}_ms": round(value, 2) for name, value in watch.laps_ms.items()},
        "total_ms": round(watch.total_ms(), 2),
    }
    with Path(target).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
