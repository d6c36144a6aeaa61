"""Matching the file names of a captions file with (path, image id) rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from capsearch.engine.records import Caption
from capsearch.indexer.sources.captions import NamedCaption
from capsearch.indexer.sources.matching import matched

ROWS = (("/p/one/a.png", "A"), ("/p/two/a.png", "B"), ("/p/two/b.png", "C"), ("/q/b.png", "C"))


@pytest.mark.parametrize(
    ("name", "image_id"),
    [
        ("two/a.png", "B"),
        ("./two/a.png", "B"),
        ("two\\a.png", "B"),
        ("/p/one/a.png", "A"),
        ("b.png", "C"),  # two files of one image
        ("a.png", None),  # two images
        ("wo/a.png", None),  # whole path components only
        ("c.png", None),
    ],
)
def test_a_name_matches_by_its_last_path_components(name, image_id):
    caption = NamedCaption(name, Caption("a cat", "en", "csv"))
    pairs, unmatched = matched(ROWS, Path("/elsewhere/captions.csv"), [caption])
    assert pairs == ([] if image_id is None else [(image_id, caption)])
    assert unmatched == (image_id is None)


def test_a_file_beside_the_captions_file_comes_first():
    caption = NamedCaption("a.png", Caption("a cat", "en", "csv"))
    assert matched(ROWS, Path("/p/two/captions.csv"), [caption]) == ([("B", caption)], 0)
