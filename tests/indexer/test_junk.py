"""Junk is not a caption: two hundred descriptions as they are found in metadata."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import pytest

from capsearch.encoders.text.languages import normalise
from capsearch.indexer.sources.junk import kind_of_junk
from capsearch.indexer.sources.metadata import written_caption

ROWS = [
    line.split("\t")
    for line in (Path(__file__).parent / "junk.tsv").read_text(encoding="utf-8").splitlines()
]


def judged_as_junk(label: str) -> list[str]:
    texts = [text for given, text in ROWS if given == label]
    assert len(texts) == 100
    return [text for text in texts if kind_of_junk(normalise(text))]


def test_precision_and_recall_on_two_hundred_descriptions():
    """Issue 12, 4."""
    hits, false_alarms = len(judged_as_junk("junk")), len(judged_as_junk("caption"))
    precision, recall = hits / (hits + false_alarms), hits / 100
    assert precision >= 0.99 and recall >= 0.99


MORE = [
    line.split("\t")
    for line in (Path(__file__).parent / "junk_more.tsv").read_text(encoding="utf-8").splitlines()
]


def test_precision_and_recall_on_descriptions_written_after_the_rules():
    """Issue 12, 4: how far the rules carry.

    The first 92 were missed more often before the rules learnt from them (precision .88, recall
    .67). The last 60 were judged once: recall .80, precision .92 (two captions with a year).
    """
    judged = [(label, kind_of_junk(normalise(text)) is not None) for label, text in MORE]
    hits = sum(label == "junk" for label, junk in judged if junk)
    assert hits / sum(junk for _, junk in judged) >= 0.99
    assert hits / sum(label == "junk" for label, _ in judged) >= 0.9


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("OLYMPUS DIGITAL CAMERA", "camera"), ("Created with GIMP", "software"),
        ("www.some-photographer.com", "web"), ("© 2014 John Smith", "copyright"),
        ("DSC_0042.JPG", "file name"), ("2019:05:01 12:34:56", "date"),
        ("48.8566, 2.3522", "position"), ("{\"a\": 1}", "settings"), ("none", "placeholder"),
        ("#a #b", "hashtags"), ("\ue000\ue001 rubbish", "no words"),
        ("Xq7 \ufffd\ufffd", "no words"),
        ("qwrtpsdfg", "no words"), ("12345 !!!!", "no words"), ("", "no words"),
        ("words " * 100, None), ("кошка на окне", None), ("고양이", None),
    ],
)  # fmt: skip
def test_every_kind_has_a_name(text, kind):
    """Issue 12, 4."""
    assert kind_of_junk(text) == kind


@pytest.mark.parametrize(
    "part", ["A", "a ", "1 ", ",", "1,", "N ", "created by a", "a: 1, ", "Photo by A", "© ", "a.b."]
)
def test_long_texts_are_judged_quickly(part):
    """Issue 12, 4: no pattern backtracks without end."""
    for length in (300, 2000):
        started = perf_counter()
        kind_of_junk((part * length)[:length] + "\x7f")
        assert perf_counter() - started < 0.5


def test_people_may_write_what_programs_do_not(tmp_path):
    """Issue 12, 4: a captions file is believed, except for what no person means."""
    assert written_caption("Photo by John Smith", "exif") is None
    assert written_caption("Photo by John Smith", "csv") is not None
    assert written_caption("2019年5月1日", "sidecar") is not None
    assert written_caption("DSC_0042.JPG", "csv") is None
