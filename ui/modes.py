"""Names of the search modes: those of the COCO-CN paper, and plain ones that mean the same."""

from __future__ import annotations

from collections.abc import Mapping

from capsearch.engine.records import Mode

MODE_NAMES: Mapping[str, Mode] = {
    "clm": "clm",
    "cm": "cm",
    "cl": "cl",
    "hybrid": "clm",
    "image": "cm",
    "caption": "cl",
}
