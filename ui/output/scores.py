"""Scores as people read them: a probability in percent, any other score as a number."""

from __future__ import annotations

from capsearch.engine.records import Unit


def score_text(score: float, unit: Unit) -> str:
    """87 % for a probability, .512 otherwise."""
    return f"{100 * score:.0f} %" if unit == "probability" else f"{score:.3f}"
