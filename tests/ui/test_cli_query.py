"""`capsearch query`: hits, output formats, filters and errors."""

from __future__ import annotations

import io
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from capsearch.encoders.models.registry import Model
from capsearch.engine.records import Facet, Facets
from capsearch.indexer.sqlite.collection import CATALOG, Collection
from capsearch.library import Library
from capsearch.ui.cli.options import first_day, last_day

Run = Callable[..., Any]


def one_line(err: str) -> bool:
    return len(err.splitlines()) == 1 and "Traceback" not in err


@pytest.mark.parametrize("text", ["something red", "红色的东西", "赤いもの"])
def test_a_sentence_in_any_of_the_languages_finds_the_image(
    text: str, indexed: Path, run: Run
) -> None:
    ran = run("query", text, "--paths", "--limit", "1")
    assert (ran.code, ran.out) == (0, f"{indexed / 'red.png'}\n")


def test_a_text_needs_no_quotes(indexed: Path, run: Run) -> None:
    assert (
        run("query", "something", "red", "--paths").out
        == run("query", "something red", "--paths").out
    )


def test_a_dash_reads_the_text_from_stdin(
    indexed: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("blue\n"))
    assert run("query", "-", "--paths", "-n", "1").out == f"{indexed / 'blue.png'}\n"


def test_an_image_finds_images_like_it(indexed: Path, run: Run, image: Callable[..., Path]) -> None:
    outside = image(indexed.parent / "outside.png", "green", "green", "blue")
    ran = run("query", "--image", outside, "--paths", "--limit", "2")
    assert ran.out == f"{indexed / 'green.jpg'}\n{indexed / 'blue.png'}\n"


def test_json_names_language_mode_weight_and_the_scores_of_each_hit(
    indexed: Path, run: Run
) -> None:
    answer = run("query", "赤い車", "--json", "--limit", "1").json
    assert answer["query"] == {
        "text": "赤い車",
        "language": "ja",
        "mode": "clm",
        "weight": 0.4,
        "unit": "score",
        "min_score": None,
        "limit": 1,
        "offset": 0,
    }
    assert answer["more"] is True
    assert answer["warnings"] == []
    [hit] = answer["hits"]
    assert hit["rank"] == 1
    assert hit["path"] == str(indexed / "red.png")
    assert hit["paths"] == [hit["path"]]
    assert (hit["width"], hit["height"]) == (16, 16)
    assert hit["score"] == pytest.approx(0.4 * hit["cl"] + 0.6 * hit["cm"])
    assert hit["caption"]["text"] in ("a red car", "一辆红色的车")


def test_a_pipe_gets_aligned_lines_without_colour(indexed: Path, run: Run) -> None:
    ran = run("query", "red car", "--limit", "2")
    heading, first, second = ran.out.splitlines()
    assert heading.split() == ["rank", "score", "CM", "CL", "path", "caption"]
    assert first.split()[0] == "1"
    assert {line.index(str(indexed)) for line in (first, second)} == {heading.index("path")}
    assert "\x1b" not in ran.out


def test_a_terminal_gets_a_link_to_each_file(
    indexed: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("capsearch.ui.cli.hits._on_terminal", lambda: True)
    assert (indexed / "red.png").as_uri() in run("query", "red").out


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("clm", "clm"),
        ("hybrid", "clm"),
        ("cm", "cm"),
        ("image", "cm"),
        ("cl", "cl"),
        ("caption", "cl"),
    ],
)
def test_a_mode_has_two_names_and_json_uses_that_of_the_paper(
    indexed: Path, run: Run, name: str, mode: str
) -> None:
    assert run("query", "red car", "--mode", name, "--json").json["query"]["mode"] == mode


def test_the_help_explains_both_names_of_a_mode(run: Run) -> None:
    shown = " ".join(run("query", "--help").out.split())
    for names in ("cm image", "cl caption", "clm hybrid"):
        assert names in shown


def test_pages_follow_each_other(indexed: Path, run: Run) -> None:
    everything = run("query", "red", "--mode", "cm", "--paths").out
    pages = [
        run("query", "red", "--mode", "cm", "--paths", "-n", 2, "--offset", at).out for at in (0, 2)
    ]
    assert "".join(pages) == everything
    assert "more: --offset 2" in run("query", "red", "--mode", "cm", "-n", 2).err


def test_a_minimum_score_leaves_out_lower_hits(indexed: Path, run: Run) -> None:
    ran = run("query", "red", "--mode", "cm", "--min-score", "0.5", "--paths")
    assert ran.out == f"{indexed / 'red.png'}\n"


def test_no_hit_is_a_hint_and_not_an_error(indexed: Path, run: Run) -> None:
    ran = run("query", "red", "--min-score", "2")
    assert (ran.code, ran.out) == (0, "")
    assert "no hits" in ran.err


def test_filters_reach_the_engine(indexed: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(indexed)
    below = run("query", "red", "--folder", "trips", "--paths").out
    assert below == f"{indexed / 'trips' / '2024' / 'yellow.webp'}\n"
    captioned = run(
        "query", "blue", "--caption-lang", "zh", "--written-by", "people", "--paths"
    ).out
    assert captioned == f"{indexed / 'red.png'}\n"
    assert run("query", "red", "--tag", "nothing", "--paths").out == ""
    assert run("query", "red", "--from", "1970", "--until", "1971-02", "--paths").out == ""


@pytest.mark.parametrize(
    ("given", "first", "last"),
    [
        ("2024", date(2024, 1, 1), date(2024, 12, 31)),
        ("2024-02", date(2024, 2, 1), date(2024, 2, 29)),
        ("2024-5-7", date(2024, 5, 7), date(2024, 5, 7)),
    ],
)
def test_a_span_of_time_has_a_first_and_a_last_day(given: str, first: date, last: date) -> None:
    assert (first_day(given), last_day(given)) == (first, last)


def test_unicode_file_names_are_printed_unchanged(
    indexed: Path, run: Run, image: Callable[..., Path]
) -> None:
    named = image(indexed / "紫色の花 [b]🌸[/b].png", "purple")
    assert run("index", indexed).code == 0
    assert run("query", "purple", "--paths", "-n", "1").out == f"{named}\n"
    assert run("query", "purple", "--json", "-n", "1").json["hits"][0]["path"] == str(named)
    assert named.name in run("query", "purple", "-n", "1").out


def test_escape_sequences_in_a_caption_do_not_reach_the_terminal(indexed: Path, run: Run) -> None:
    (indexed / "blue.txt").write_text("a blue \x1b[2Jsea\n", encoding="utf-8")
    assert run("index", indexed).code == 0
    ran = run("query", "blue sea", "-n", "1")
    assert "sea" in ran.out
    assert "\x1b" not in ran.out


def test_a_text_without_known_words_is_a_warning(indexed: Path, run: Run) -> None:
    ran = run("query", "xyzzy")
    assert ran.code == 0
    assert "warning: " in ran.err


def test_an_empty_query_is_refused(indexed: Path, run: Run) -> None:
    for text in ([], [""], ["   "]):
        ran = run("query", *text)
        assert (ran.code, ran.out) == (2, "")
        assert one_line(ran.err)
        assert "words or an image" in ran.err


def test_an_unknown_language_is_refused_and_the_known_ones_are_listed(
    indexed: Path, run: Run
) -> None:
    ran = run("query", "katze", "--lang", "de")
    assert (ran.code, ran.out) == (2, "")
    assert one_line(ran.err)
    assert "en, zh, ja" in ran.err


def test_a_missing_index_is_refused_with_the_command_that_makes_one(run: Run) -> None:
    ran = run("query", "red")
    assert (ran.code, ran.out) == (2, "")
    assert one_line(ran.err)
    assert "capsearch index" in ran.err


def test_an_empty_index_is_refused(run: Run, index_path: Path, toy_models: Model) -> None:
    Collection.create(index_path, toy_models).close()
    ran = run("query", "red")
    assert (ran.code, ran.out) == (2, "")
    assert one_line(ran.err)


def test_an_index_of_a_newer_capsearch_is_refused(
    indexed: Path, run: Run, index_path: Path
) -> None:
    with closing(sqlite3.connect(index_path / CATALOG)) as catalog:
        catalog.execute("PRAGMA user_version = 9999")
    ran = run("query", "red")
    assert (ran.code, ran.out) == (2, "")
    assert one_line(ran.err)
    assert "upgrade" in ran.err


def test_a_broken_image_to_compare_with_is_refused_by_name(
    indexed: Path, run: Run, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"not an image")
    ran = run("query", "--image", broken)
    assert (ran.code, ran.out) == (2, "")
    assert one_line(ran.err)
    assert str(broken) in ran.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tag", "nosuchtag"), "no image here has the tag 'nosuchtag'"),
        (("--folder", "/nonexistent"), "no image here lies below /nonexistent"),
        (("--from", "2099"), "no image here was taken on or after 2099-01-01"),
        (("--until", "1900"), "no image here was taken on or before 1900-12-31"),
        (("--caption-lang", "ja"), "no image here has a caption in 'ja'"),
        (("--written-by", "models"), "no image here has a caption written by models"),
    ],
)
def test_a_filter_that_lets_nothing_through_is_named_and_not_the_score(
    indexed: Path, run: Run, options: tuple[str, ...], said: str
) -> None:
    ran = run("query", "red", *options)
    assert (ran.code, ran.out) == (0, "")
    assert said in ran.err
    assert "no hits" not in ran.err


def test_filters_that_let_nothing_through_together_are_said(indexed: Path, run: Run) -> None:
    ran = run("query", "red", "--folder", indexed / "trips", "--caption-lang", "en")
    assert ran.err == "no image passes all filters together\n"


def test_the_nearest_tags_are_suggested(
    indexed: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    facets = Facets(tags=(Facet("Umbrella", 3), Facet("dog", 1)))
    monkeypatch.setattr(Library, "facets", lambda library: facets)
    assert "did you mean Umbrella?" in run("query", "red", "--tag", "umbrela").err
