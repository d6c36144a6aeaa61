"""Matching the file names of a captions file with (path, image id) rows."""

from __future__ import annotations

from pathlib import Path
from unicodedata import normalize

import pytest

from capsearch.engine.records import Caption
from capsearch.indexer.sources.captions import NamedCaption, matched
from capsearch.indexer.sources.scan import spellings

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


@pytest.mark.parametrize(("stored", "given"), [("NFD", "NFC"), ("NFC", "NFD")])
@pytest.mark.parametrize("origin", ["/elsewhere/captions.csv", "/p/ガーデン/captions.csv"])
def test_composed_and_decomposed_names_are_equal(stored, given, origin):
    """Issue 11, 9: macOS decomposes names, a CSV written elsewhere composes them."""
    rows = [(normalize(stored, "/p/ガーデン/桜が咲く.png"), "A"), ("/p/other.png", "B")]
    for name in ("桜が咲く.png", "ガーデン/桜が咲く.png", "/p/ガーデン/桜が咲く.png"):
        caption = NamedCaption(normalize(given, name), Caption("桜", "ja", "csv"))
        assert matched(rows, Path(normalize(given, origin)), [caption]) == ([("A", caption)], 0)


def test_a_name_in_the_spelling_of_the_disk_comes_first():
    """Issue 11, 9: both spellings may be different files of one folder."""
    rows = [(normalize("NFC", "/p/é.png"), "C"), (normalize("NFD", "/p/é.png"), "D")]
    for form, image_id in (("NFC", "C"), ("NFD", "D")):
        caption = NamedCaption(normalize(form, "é.png"), Caption("a cat", "en", "csv"))
        assert matched(rows, Path("/captions.csv"), [caption]) == ([(image_id, caption)], 0)


def test_every_component_of_a_path_may_be_spelt_either_way():
    """Issue 11, 9."""
    nfc, nfd = normalize("NFC", "が"), normalize("NFD", "が")
    assert set(spellings(f"/{nfc}/{nfd}")) == {f"/{a}/{b}" for a in (nfc, nfd) for b in (nfc, nfd)}
    assert spellings("/plain/path") == ("/plain/path",)
    assert len(spellings("/é" * 40)) == 2
