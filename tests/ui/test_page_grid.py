"""The texts below an image, and the shape of its tile."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from capsearch.engine.records import Caption, Contributions, Document, ImageRecord, Tag
from capsearch.library import Library
from capsearch.ui.web import grid
from capsearch.ui.web.grid import MAX_TAGS, scores_line, tags_for
from capsearch.ui.web.style import NARROWEST, WIDEST, buckets, ratio_bucket, stylesheet


def test_control_characters_of_a_caption_do_not_reach_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grid, "tile_files", lambda library, records: [None] * len(records))
    record = ImageRecord("0" * 32, ("/red.png",), 16, 16, 99, "PNG")
    hostile = Document(record, (Caption("a\x1b[31m\u202ecat", "en", "sidecar"),))
    [tile] = grid.tiles_of_documents(Library(Path()), [hostile], "en")
    assert tile.caption.startswith("a") and tile.caption.isprintable()


def test_tags_are_in_the_page_language_if_there_are_any() -> None:
    tags = (Tag("cat", "en", 0.9, "model:m"), Tag("猫", "zh", 0.8, "model:m"))
    assert tags_for("zh", tags) == "猫"
    assert tags_for("ja", tags) == "cat · 猫"


def test_only_the_tags_with_the_highest_confidence_are_shown() -> None:
    tags = [Tag(f"t{at}", "en", 1 - at / 10, "model:m") for at in range(9)]
    assert len(tags_for("en", tags).split(" · ")) == MAX_TAGS


def test_all_three_scores_are_shown_and_a_missing_one_is_a_dash() -> None:
    assert scores_line(0.5, "score", Contributions(cm=0.25, cl=None)).split() == [
        "0.500", "CM", "0.250", "CL", "–",
    ]  # fmt: skip


def test_a_probability_is_shown_in_percent() -> None:
    assert scores_line(0.87, "probability", Contributions(cm=0.25, cl=0.5)).split() == [
        "87%", "CM", "0.250", "CL", "0.500",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("width", "height", "shape"),
    [(300, 200, 150), (200, 300, 65), (100, 100, 100), (9000, 100, WIDEST), (1, 900, NARROWEST)],
)
def test_a_tile_has_the_shape_of_its_image_within_limits(
    width: int, height: int, shape: int
) -> None:
    assert ratio_bucket(width, height) == shape


def test_the_style_sheet_covers_every_tile_shape() -> None:
    known = {int(found) for found in re.findall(r'_r(\d{3})"', stylesheet("x"))}
    assert known == set(buckets())
