"""Published figures of captions and tags, as the papers' tables have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A paper's figures by model, and the setting they were measured in."""

    title: str
    language: str
    setting: str  # how it differs from ours
    rows: Mapping[str, Mapping[str, float]]


def _cococn(bleu: float, meteor: float, rouge: float, cider: float) -> dict[str, float]:
    values = {"BLEU-4": bleu, "METEOR": meteor, "ROUGE-L": rouge, "CIDEr-D": cider}
    return {name: round(value / 100, 3) for name, value in values.items()}


def _figures(*values: float | None) -> dict[str, float]:
    """BLEU-1 to 4, METEOR, ROUGE-L, CIDEr; None where the paper has none."""
    names = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr-D")
    pairs = zip(names, values, strict=True)
    return {name: value for name, value in pairs if value is not None}


CAPTION_TABLES = (
    PublishedTable(
        "COCO-CN tables VIII and XIII",
        "zh",
        "1,000 test images with six references; CIDEr; words of BosonNLP",
        {
            "COCO-CN": _cococn(31.7, 27.2, 52.0, 84.6),
            "COCO-Mixed": _cococn(29.8, 28.6, 50.3, 86.8),
            "transfer": _cococn(33.7, 28.2, 52.9, 89.2),
            "artificial token": _cococn(31.8, 26.9, 51.5, 85.4),
            "sequential": _cococn(36.7, 29.5, 55.0, 98.4),
            "image + tags": _cococn(31.3, 30.1, 53.2, 90.0),
        },
    ),
    PublishedTable(
        "Miyazaki 2016 table 2",
        "ja",
        "2,000 test images with about five references",
        {
            "monolingual": _figures(0.715, 0.573, 0.468, 0.379, None, 0.616, 0.580),
            "alternate": _figures(0.709, 0.565, 0.460, 0.370, None, 0.611, 0.568),
            "transfer": _figures(0.717, 0.574, 0.469, 0.380, None, 0.619, 0.625),
        },
    ),
    PublishedTable(
        "Mao 2015 table 4, Karpathy 2016 table 3",
        "en",
        "COCO test images with five references",
        {
            "m-RNN": _figures(0.668, 0.488, 0.342, 0.239, 0.221, 0.489, 0.729),
            "m-RNN, beam": _figures(0.680, 0.506, 0.369, 0.272, 0.225, 0.499, 0.791),
            "multimodal RNN": _figures(0.625, 0.450, 0.321, 0.230, 0.195, None, 0.660),
            "nearest neighbour": _figures(0.480, 0.281, 0.166, 0.100, 0.157, None, 0.38),
        },
    ),
)

# COCO-CN table IV: precision, recall and F of the five best Chinese tags, 1,000 test images.
TAG_TABLE: Mapping[str, tuple[float, float, float]] = {
    "MLP trained on COCO-CN": (0.477, 0.576, 0.503),
    "multi-task MLP": (0.482, 0.583, 0.508),
    "cascading MLP": (0.491, 0.594, 0.517),
}
