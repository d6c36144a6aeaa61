"""Committed speed figures, and which ratios have become worse since.

Seconds differ between machines; a ratio to a baseline measured in the same run hardly does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from capsearch.benchmarks.timing import Measurement
from capsearch.engine.errors import DataProblem

FIGURES = Path(__file__).with_name("figures.json")
MAX_LOSS = 0.25
_LOWER_IS_BETTER = ("ms", "s")


@dataclass(frozen=True, slots=True)
class Loss:
    """A ratio that has fallen: what was measured, beside what, then and now."""

    name: str
    beside: str
    before: float
    now: float

    def __str__(self) -> str:
        return f"{self.name}: {self.now:.3g} x {self.beside}, was {self.before:.3g} x"


def losses(
    measured: Sequence[Measurement], committed: Mapping[tuple[str, str], float]
) -> tuple[Loss, ...]:
    """The ratios that fell by more than MAX_LOSS; DataProblem if none can be compared."""
    compared = [*_compared(measured, committed)]
    if not compared:
        raise DataProblem(
            "none of these measurements has a committed figure; measure the part `search`"
        )
    return tuple(
        Loss(one.name, one.beside or "", before, now)
        for one, before, now in compared
        if (before / now if one.unit in _LOWER_IS_BETTER else now / before) < 1 - MAX_LOSS
    )


def committed(path: Path = FIGURES) -> Mapping[tuple[str, str], float]:
    """Ratios by part and name; DataProblem if the file is none of `bench speed --json`."""
    try:
        lines = json.loads(path.read_text(encoding="utf-8"))["measurements"]
        return {(one["part"], one["name"]): one["ratio"] for one in lines if one["ratio"]}
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise DataProblem(
            f"{path} does not hold speed figures ({problem}); make them with "
            "`capsearch bench speed --json`"
        ) from problem


def _compared(
    measured: Sequence[Measurement], committed: Mapping[tuple[str, str], float]
) -> Iterator[tuple[Measurement, float, float]]:
    for one in measured:
        before = committed.get((one.part, one.name))
        if before is not None and one.ratio is not None:
            yield one, before, one.ratio
