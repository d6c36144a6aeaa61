"""Values as people read them, on a terminal and on the page: text, sizes, scores, search modes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from capsearch.engine.records import Mode, Unit

# Category Cf cannot be dropped as a whole, since emoji need its joiners. These are its characters
# that change the direction of text, with which a file name can be disguised.
_DIRECTION = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
HIDDEN = re.compile(f"[\x00-\x1f\x7f-\x9f{_DIRECTION}\ud800-\udfff]")
_LINE_BREAKS = re.compile("[\n\r\t\u2028\u2029]")


def printable(text: str) -> str:
    """Text that is safe on a terminal: control characters are replaced, line breaks are spaces.

    A caption or a file name may contain escape sequences; none of them reaches the terminal.
    """
    return HIDDEN.sub("\N{REPLACEMENT CHARACTER}", _LINE_BREAKS.sub(" ", text))


def human_bytes(count: int) -> str:
    """1,536 -> '1.5 kB'."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def score_text(score: float, unit: Unit) -> str:
    """87% for a probability, 0.512 otherwise; 0% and 100% only where they are exact."""
    if unit == "score":
        return f"{score:.3f}"
    if 0.0 < score < 0.005:
        return "<1%"
    if 0.995 <= score < 1.0:
        return ">99%"
    return f"{100 * score:.0f}%"


# Those of the COCO-CN paper, and plain ones that mean the same.
MODE_NAMES: Mapping[str, Mode] = {
    "clm": "clm",
    "cm": "cm",
    "cl": "cl",
    "hybrid": "clm",
    "image": "cm",
    "caption": "cl",
}
