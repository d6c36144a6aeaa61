"""Scores as people read them: a probability in percent, any other score as a number."""

from __future__ import annotations

from capsearch.engine.records import Unit


def score_text(score: float, unit: Unit) -> str:
    """87% for a probability, 0.512 otherwise; 0% and 100% only where they are exact."""
    if unit == "score":
        return f"{score:.3f}"
    if 0.0 < score < 0.005:
        return "<1%"
    if 0.995 <= score < 1.0:
        return ">99%"
    return f"{100 * score:.0f}%"
